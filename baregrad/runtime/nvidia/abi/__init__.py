"""The driver's wire: structs, numbers and methods, by driver release. Vendor spelling lives here.

Sources are the driver's published headers, open-gpu-kernel-modules `src/common/sdk/nvidia/inc`
(`SDK` below), `src/nvidia/arch/nvalloc/unix/include` (`UNIX`) and `kernel-open/nvidia-uvm` (`UVM`),
and the class headers of open-gpu-doc; `check_headers` compares everything here with them.
"""

from __future__ import annotations

from baregrad.runtime.nvidia.abi.layout import Field as Field
from baregrad.runtime.nvidia.abi.layout import Record as Record
from baregrad.runtime.nvidia.abi.layout import Struct as Struct
from baregrad.runtime.nvidia.abi.releases import Release as Release
from baregrad.runtime.nvidia.abi.releases import release_for as release_for
from baregrad.runtime.nvidia.abi.status import status_name as status_name

__all__ = ["Field", "Record", "Release", "Struct", "release_for", "status_name"]
