"""What `baregrad doctor` says of the device CUDA: libcuda, its GPUs, the assembler."""

from __future__ import annotations

from itertools import permutations

from baregrad.base.bits import human_bytes
from baregrad.base.errors import BaregradError, UnsupportedDevice
from baregrad.cli.finding import Finding, find_ptxas
from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.driver import Driver, version_text
from baregrad.target import gpu_row

_NEEDS = "an NVIDIA GPU, libcuda.so.1 of NVIDIA's driver (525 or later, CUDA 12.0), and ptxas"


def examine_cuda() -> Finding:
    """Look at the GPUs that libcuda shows; makes no context on them."""
    facts: list[str] = []
    advice = ""
    try:
        driver = Driver()
        facts.append(f"libcuda.so.1 of CUDA {version_text(driver.version)}")
        found, advice = _gpus(driver)
        facts += found
    except BaregradError as error:
        facts.append(f"{error.message}" + (f": {error.found}" if error.found else ""))
        advice = error.hint or "use BAREGRAD_DEVICE=CPU"
    fact, missing = find_ptxas()
    facts.append(fact)
    advice = advice or missing
    return Finding("CUDA", "missing" if advice else "ready", _NEEDS, tuple(facts), advice)


def _gpus(driver: Driver) -> tuple[list[str], str]:
    """Return a line for each GPU and pair, and what to do if there is none that we drive."""
    devices = [driver.device(ordinal) for ordinal in range(driver.device_count())]
    if not devices:
        return ["no GPU that libcuda shows"], "see nvidia-smi, and CUDA_VISIBLE_DEVICES"
    facts, refused = [], []
    for ordinal, device in enumerate(devices):
        architecture = driver.architecture(device)
        unknown = ""
        try:
            gpu_row(architecture)
        except UnsupportedDevice as error:
            unknown = ", for which no kernels are made"
            refused.append(f"kernels are made for {error.wanted}")
        units = driver.attribute(device, abi.MULTIPROCESSOR_COUNT)
        facts.append(
            f"CUDA:{ordinal}: {driver.device_name(device)}, {architecture}{unknown}, "
            f"{units} multiprocessors, {human_bytes(driver.total_nbytes(device))}"
        )
    for one, other in permutations(range(len(devices)), 2):
        straight = driver.integer("cuDeviceCanAccessPeer", devices[one], devices[other])
        way = "straight" if straight else "by the driver, through the host"
        facts.append(f"CUDA:{one} to CUDA:{other}: {way}")
    return facts, refused[0] if len(refused) == len(devices) else ""
