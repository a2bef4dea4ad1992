"""LLVM IR text to a relocatable ELF object, through llvmlite.

The text is expected to be nearly finished: vectors are explicit, addresses simplified, loops laid
out. So only a few cheap passes run before code generation (they are names of llvmlite's pass
manager, or one of "O1", "O2", "O3"); floating-point freedom comes from the flags in the text and
from nowhere else.

With a disk cache, a text that was assembled before costs no import of llvmlite.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from baregrad.assemble.cache import DiskCache, key_of
from baregrad.assemble.interface import Assembler
from baregrad.base.errors import CompileError, MissingDependency

if TYPE_CHECKING:
    from llvmlite.binding import ModuleRef, TargetMachine

# Measured on hand-written kernels: promoting allocas is all that finished text needs, and the
# standard pipelines cost more than the code generator itself (see `LlvmOptions`).
DEFAULT_PASSES = ("sroa",)
_LEVELS = ("O1", "O2", "O3")
_FORMAT = "llvm-object-2"
# Of LLVM's code generators, by machine: for all modules of the process, there is no other way. Some
# x86 processors decode a block of 32 bytes anew each time if a jump crosses or ends it (Intel,
# Mitigations for Jump Conditional Code Erratum, 2019): loops were slower or not by their place.
_SWITCHES = MappingProxyType({"x86_64": ("-x86-branches-within-32B-boundaries",)})
_CPU_FACTS = (
    "vendor_id",
    "cpu family",
    "model",
    "flags",
    "CPU implementer",
    "CPU part",
    "Features",
)


@dataclass(frozen=True, slots=True)
class LlvmOptions:
    """How a text is assembled.

    `cpu` and `features` are LLVM's names, or "host" for the machine that we run on (the default).
    `triple` is LLVM's, empty for this machine's; it always means ELF. `passes` run in order before
    code generation. `codegen_level` is 0 to 3.
    """

    cpu: str = "host"
    features: str = "host"
    triple: str = ""
    passes: tuple[str, ...] = DEFAULT_PASSES
    codegen_level: int = 2


class LlvmAssembler(Assembler):
    """Turns LLVM IR text into objects; owns the target machines that it needs for it.

    `cache` may be None. Safe to use from several threads (llvmlite lets one compile at a time).
    """

    def __init__(
        self, cache: DiskCache | None = None, options: LlvmOptions = LlvmOptions()
    ) -> None:
        self.cache = cache
        self.options = options
        self._identities: dict[LlvmOptions, str] = {}
        self._machines: dict[LlvmOptions, TargetMachine] = {}

    def assemble(self, text: str, options: LlvmOptions | None = None) -> bytes:
        """Return the object of a module's text.

        Raises CompileError with the source where LLVM refuses it, MissingDependency where llvmlite
        is not installed and the cache does not have the object.
        """
        options = options or self.options
        if self.cache is None:
            return self._build(text, options)
        key = self.key(text, options)
        return self.cache.get_or_build(key, lambda: self._build(text, options))

    @property
    def version(self) -> str:
        """Everything but the text that decides what comes out, for cache keys.

        Found without importing llvmlite: its version (empty where it is not installed), the
        options, and the processor where the options say "host".
        """
        return self._identity(self.options)

    def key(self, text: str, options: LlvmOptions | None = None) -> str:
        """Return the cache key of a text."""
        return key_of(_FORMAT, self._identity(options or self.options), text)

    def disassemble(self, text: str, options: LlvmOptions | None = None) -> str:
        """Return the machine code of a module's text as assembly."""
        options = options or self.options
        machine = self._machine(options)
        return str(machine.emit_assembly(_optimised(text, options, machine)))

    def _identity(self, options: LlvmOptions) -> str:
        found = self._identities.get(options)
        if found is None:
            on_host = "host" in (options.cpu, options.features)
            triple = options.triple or native_triple()
            parts = [f"llvmlite {_installed_version()}", triple, repr(options)]
            if on_host:
                parts.append(host_fingerprint())
            found = self._identities[options] = "\n".join(parts)
        return found

    def _build(self, text: str, options: LlvmOptions) -> bytes:
        machine = self._machine(options)
        return bytes(machine.emit_object(_optimised(text, options, machine)))

    def _machine(self, options: LlvmOptions) -> TargetMachine:
        machine = self._machines.get(options)
        if machine is None:
            machine = self._machines[options] = _create_machine(options)
        return machine


def _installed_version() -> str:
    """Return llvmlite's version, empty where it is not installed.

    That is in the name of the folder of metadata beside the package. `importlib.metadata` would
    read what is in there, which takes a process of ours a fiftieth of a second.
    """
    spec = find_spec("llvmlite")
    places = spec.submodule_search_locations if spec is not None else None
    found = [one for place in places or () for one in Path(place).parent.glob("llvmlite-*-info")]
    if len(found) == 1:
        return found[0].name.split("-")[1].removesuffix(".dist")
    if spec is None:
        return ""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("llvmlite")
    except PackageNotFoundError:
        return ""


def native_triple() -> str:
    """Return the triple of this machine, always with ELF objects: our loader reads nothing else."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine()
    )
    return f"{machine}-unknown-linux-gnu"


def host_fingerprint() -> str:
    """Return a text that changes with the processor's model and features.

    It stands in for LLVM's names of them, which cannot be had without importing llvmlite.
    """
    facts = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _CPU_FACTS:
            facts[name.strip()] = value.strip()
    return repr(sorted(facts.items()))


def _binding(triple: str) -> None:
    """Make LLVM's code generators ready; all of them only for a foreign target."""
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        raise MissingDependency(
            package="llvmlite",
            hint='install it with: pip install llvmlite, or render C with BAREGRAD_CPU_RENDERER=c',
        ) from error
    if triple:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    for switch in _SWITCHES.get(platform.machine().lower(), ()):
        llvm.set_option("baregrad", switch)


def _create_machine(options: LlvmOptions) -> TargetMachine:
    _binding(options.triple)
    import llvmlite.binding as llvm

    cpu = llvm.get_host_cpu_name() if options.cpu == "host" else options.cpu
    features = options.features
    if features == "host":
        features = llvm.get_host_cpu_features().flatten()
    try:
        target = llvm.Target.from_triple(options.triple or native_triple())
        # Objects are loaded close together but far from libm: position-independent small code.
        return target.create_target_machine(
            cpu=cpu, features=features, opt=options.codegen_level, reloc="pic", codemodel="small"
        )
    except (RuntimeError, ValueError) as error:
        raise CompileError("LLVM has no such target", found=options, log=str(error)) from error


def _optimised(text: str, options: LlvmOptions, machine: TargetMachine) -> ModuleRef:
    """Parse, verify and optimise a text; raise CompileError with LLVM's words if it is wrong."""
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(text)
    except RuntimeError as error:
        raise CompileError("LLVM refused a module", source=text, log=str(error)) from error
    module.triple = options.triple or native_triple()
    module.data_layout = str(machine.target_data)
    try:
        module.verify()
    except RuntimeError as error:
        raise CompileError("LLVM refused a module", source=text, log=str(error)) from error
    _run_passes(module, options, machine)
    return module


def _run_passes(module: ModuleRef, options: LlvmOptions, machine: TargetMachine) -> None:
    if not options.passes:
        return
    import llvmlite.binding as llvm

    for name in options.passes:
        tuning = llvm.create_pipeline_tuning_options()
        if name in _LEVELS:
            tuning.speed_level = int(name[1])
            tuning.loop_vectorization = tuning.slp_vectorization = name != "O1"
        builder = llvm.create_pass_builder(machine, tuning)
        if name in _LEVELS:
            manager = builder.getModulePassManager()
        else:
            manager = llvm.create_new_module_pass_manager()
            add = getattr(manager, f"add_{name}_pass", None)
            if add is None:
                raise CompileError(f"LLVM has no pass {name!r}", hint="see LlvmOptions.passes")
            add()
        manager.run(module, builder)
