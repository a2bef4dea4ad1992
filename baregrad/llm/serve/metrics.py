"""What the server has done, in the text form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Mapping

_GAUGES = ("running", "waiting", "pages", "pages_free", "pages_known")


def metrics_text(counts: Mapping[str, int], statuses: Mapping[int, int]) -> str:
    """Return counts of the engine, and of answers by their HTTP status."""
    lines = []
    for name, value in sorted(counts.items()):
        kind = "gauge" if name in _GAUGES else "counter"
        full = f"baregrad_{name}" + ("" if kind == "gauge" else "_total")
        lines += [f"# TYPE {full} {kind}", f"{full} {value}"]
    lines.append("# TYPE baregrad_http_answers_total counter")
    for status, count in sorted(statuses.items()):
        lines.append(f'baregrad_http_answers_total{{status="{status}"}} {count}')
    return "\n".join(lines) + "\n"
