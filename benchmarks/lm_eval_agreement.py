"""Two small tasks of lm_eval, by ours and by `transformers` with the same weights.

    python benchmarks/lm_eval_agreement.py FILE

FILE is a GGUF file. The Python has lm_eval, torch, transformers and gguf beside baregrad. The tasks
are made here: capitals to choose among four, and the perplexity of our licence's text. Ours answers
twice, once with activations that are rounded to bytes and once as they are; `hf` of lm_eval takes
the weights that `transformers` makes of FILE. The exit status is 1 where the accuracy of an exact
run is another, or a perplexity is off by more than APART.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Of perplexities, in parts of one: exact activations, and rounded ones, which were 0.03 of a text
# that the model knows by heart.
APART = {"exact": 1e-3, "rounded": 5e-2}
CAPITALS = (
    "France Paris, Germany Berlin, Italy Rome, Spain Madrid, Portugal Lisbon, Austria Vienna, "
    "Poland Warsaw, Hungary Budapest, Greece Athens, Ireland Dublin, Norway Oslo, "
    "Sweden Stockholm, Denmark Copenhagen, Finland Helsinki, Russia Moscow, Turkey Ankara, "
    "Egypt Cairo, Kenya Nairobi, Ethiopia Addis_Ababa, Iran Tehran, Iraq Baghdad, India New_Delhi, "
    "China Beijing, Japan Tokyo, Thailand Bangkok, Vietnam Hanoi, Indonesia Jakarta, "
    "Australia Canberra, Canada Ottawa, Mexico Mexico_City, Cuba Havana, Peru Lima, "
    "Chile Santiago, Argentina Buenos_Aires, Colombia Bogotá, Venezuela Caracas"
)
_TASKS = {
    "capitals": """
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/capitals.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{{{country}}}} is"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
""",
    "licence": """
task: licence
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/licence.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}]
""",
}


def main(argv: Sequence[str]) -> int:
    """Run the tasks and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    path = Path(parser.parse_args(argv).file).resolve()
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(Path(folder))
        found = {
            "rounded": run(folder, ours(path, exact=False)),
            "exact": run(folder, ours(path, exact=True)),
            "transformers": run(folder, theirs(path)),
        }
    for name, (accuracy, perplexity) in found.items():
        print(f"{name:<14} accuracy {accuracy:.4f}, word perplexity {perplexity:.4f}")
    accuracy, perplexity = found["transformers"]
    wrong = found["exact"][0] != accuracy
    for name, most in APART.items():
        wrong |= abs(found[name][1] / perplexity - 1) > most
    return int(wrong)


def write_tasks(folder: Path) -> None:
    """Write both tasks and their data."""
    pairs = [pair.split(" ") for pair in CAPITALS.replace(", ", ",").split(",")]
    names = [capital.replace("_", " ") for _, capital in pairs]
    rows = []
    for at, (country, _) in enumerate(pairs):
        others = [names[(at + step) % len(names)] for step in (0, 5, 11, 17)]
        place = at % len(others)
        others[0], others[place] = others[place], others[0]
        rows.append({
            "country": country, "choices": [f" {each}" for each in others], "answer": place,
        })
    _lines(folder / "capitals.jsonl", rows)
    text = (Path(__file__).parents[1] / "LICENSE").read_text("utf-8")
    _lines(folder / "licence.jsonl", [{"text": text}])
    for name, task in _TASKS.items():
        (folder / f"{name}.yaml").write_text(task.format(folder=folder), "utf-8")


def _lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def ours(path: Path, *, exact: bool) -> Any:
    """Our model as lm_eval takes it."""
    from baregrad.llm.evaluation.harness import harness_class

    return harness_class().create_from_arg_obj({
        "path": str(path), "exact": exact, "context": 1024, "cache": "f32",
    })


def theirs(path: Path) -> Any:
    """The same weights in `transformers`."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(path.parent), gguf_file=path.name, device="cpu", dtype="float32",
                max_length=1022, batch_size=1)  # fmt: skip


def run(folder: str, model: Any) -> tuple[float, float]:
    """Return a model's accuracy and perplexity."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    tasks = TaskManager(include_path=folder, include_defaults=False)
    found = lm_eval.simple_evaluate(model, tasks=list(_TASKS), task_manager=tasks,
                                    bootstrap_iters=0)["results"]  # fmt: skip
    return found["capitals"]["acc,none"], found["licence"]["word_perplexity,none"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
