"""What no published source has, by what it was measured to be: names of controls, and a layout.

The names are ours, in plain words, and so are those of the fields. What is known of each was seen
on an H200 with driver 580.159.04, in what `libcudart` and `nvidia-smi` asked beside what they
showed then, and in what they said once an answer was changed, or refused, behind their backs;
fields that nothing shown depends on are called by their place. Where a caller's struct has another
size, none of this is taken for it.
"""

from __future__ import annotations

from types import MappingProxyType

# By number: the words, and the struct's name.
CONTROLS = MappingProxyType({
    # cuInit asks it of each GPU, with 2, 12, 0, 37 and zeros, which come back as they are: only
    # whether it is refused tells something. CUDA has no device then (CUDA_ERROR_NO_DEVICE).
    0x20808159: ("use by CUDA", "measured_use_by_cuda"),
    # cuInit asks it of each GPU with a byte that comes back as it is. Refused, it has no device
    # reach another's memory: cuDeviceCanAccessPeer, and access and atomics between them, are 0.
    0x20808162: ("access to peers", "measured_access_to_peers"),
    # On anything but zero in the first word of what is zeros else, CUDA does nothing more in a
    # context (CUDA_ERROR_DEVICE_NOT_LICENSED); the next words, or a refusal, change nothing.
    0x20810108: ("licence", "measured_licence"),
    # A mask, in which the domains of 0x20809064 are.
    0x20809001: ("clock domains", "measured_clock_domains"),
    # A mask of the kinds of clock that NVML counts: 1 graphics, 4 memory, 8 video (nvml.h,
    # nvmlClockType_t), which nvidia-smi asks 0x20809064 for one by one.
    0x20809009: ("kinds of clocks", "measured_clock_kinds"),
    # Which domain each kind of clock is, and 100 for its share of that one's clock.
    0x20809064: ("domains of kinds of clocks", "measured_domains_of_kinds"),
    # The highest clocks of domains: those of cudaDeviceProp.clockRate and memoryClockRate.
    0x2080A026: ("highest clocks", "measured_highest_clocks"),
    # What it answers is not known, only its place: libcudart asks it before each 0x2080a026. On an
    # H200 it is 0x1000001, idle or not. With any other word in its place, or refused, nothing that
    # CUDA tells of a device is another: all attributes of driver and runtime, the properties.
    0x2080A084: ("asked before highest clocks", "measured_before_highest_clocks"),
})
# As the vendor's table has structs: the size, then offset, kind, count and name of each field.
STRUCTS = MappingProxyType({
    "measured_use_by_cuda": "332;0 u32 1 word0;4 u32 1 word1;8 u32 1 word2;12 u32 1 word3",
    "measured_access_to_peers": "1;0 u8 1 byte0",
    "measured_licence": "992;0 u32 1 unlicensed",
    "measured_clock_domains": "8;0 u32 1 domains;4 u32 1 word1",
    "measured_clock_kinds": "8;0 u32 1 word0;4 u32 1 kinds",
    "measured_domains_of_kinds":
        "520;0 u32 1 word0;4 u32 1 listCount;8 measured_domain_of_kind 32 list",
    "measured_domain_of_kind": "16;0 u32 1 kind;4 u32 1 domain;8 u32 1 word2;12 u32 1 percent",
    "measured_highest_clocks":
        "532;0 u32 1 word0;4 u32 1 word1;8 u32 1 word2;12 u32 1 word3;16 u32 1 listCount;"
        "20 measured_highest_clock 32 list",
    "measured_before_highest_clocks": "4;0 u32 1 word0",
    "measured_highest_clock": "16;0 u32 1 domain;4 u32 1 word1;8 u32 1 kHz;12 u32 1 word3",
})  # fmt: skip
# Layouts of a release whose headers were not read, by the first release that has them and the first
# of the next branch, which has its own. In 580.159.04 what tells of remapped rows is eight bytes
# longer than in 580.142 and in 595.45.04: nvidia-smi maps 2608 bytes, and behind that section each
# has its time eight bytes later, with the power, in milliwatts, that nvidia-smi showed.
LAYOUTS = MappingProxyType({
    "RUSD_MEM_ROW_REMAP": (
        "580.159.04", "590.44.01",
        "48;0 u64 1 lastModifiedTimestamp;8 RUSD_MEM_ROW_REMAP_INFO 1 info",
    ),
    "NV00DE_SHARED_DATA": (
        "580.159.04", "590.44.01",
        "2608;0 RUSD_BAR1_MEMORY_INFO 1 bar1MemoryInfo;16 RUSD_PMA_MEMORY_INFO 1 pmaMemoryInfo;"
        "40 RUSD_SHADOW_ERR_CONT 1 shadowErrCont;56 RUSD_GR_INFO 1 grInfo;"
        "72 RUSD_CLK_PUBLIC_DOMAIN_INFOS 1 clkPublicDomainInfos;"
        "96 RUSD_CLK_THROTTLE_INFO 1 clkThrottleInfo;"
        "1976 RUSD_PERF_DEVICE_UTILIZATION 1 perfDevUtil;2024 RUSD_MEM_ECC 1 memEcc;"
        "2264 RUSD_PERF_CURRENT_PSTATE 1 perfCurrentPstate;2280 RUSD_POWER_LIMITS 1 powerLimitGpu;"
        "2296 RUSD_TEMPERATURE 5 temperatures;2376 RUSD_MEM_ROW_REMAP 1 memRowRemap;"
        "2424 RUSD_AVG_POWER_USAGE 1 avgPowerUsage;2448 RUSD_INST_POWER_USAGE 1 instPowerUsage;"
        "2472 RUSD_POWER_POLICY_STATUS 1 powerPolicyStatus;2488 RUSD_PCIE_DATA 1 pciBusData;"
        "2536 RUSD_FAN_COOLER_STATUS 1 fanCoolerStatus",
    ),
})
