"""Controls that no published source names, by what they were measured to answer.

The names are ours, in plain words, and so are those of the fields. What is known of each was seen
on an H200 with driver 580.159.04, in what `libcudart` and `nvidia-smi` asked beside what they
showed then; fields that nothing shown depends on are called by their place. Where a caller's struct
has another size, none of this is taken for it.
"""

from __future__ import annotations

from types import MappingProxyType

# By number: the words, and the struct's name.
CONTROLS = MappingProxyType({
    # A mask, in which the domains of 0x20809064 are.
    0x20809001: ("clock domains", "measured_clock_domains"),
    # A mask of the kinds of clock that NVML counts: 1 graphics, 4 memory, 8 video (nvml.h,
    # nvmlClockType_t), which nvidia-smi asks 0x20809064 for one by one.
    0x20809009: ("kinds of clocks", "measured_clock_kinds"),
    # Which domain each kind of clock is, and 100 for its share of that one's clock.
    0x20809064: ("domains of kinds of clocks", "measured_domains_of_kinds"),
    # The highest clocks of domains: those of cudaDeviceProp.clockRate and memoryClockRate.
    0x2080A026: ("highest clocks", "measured_highest_clocks"),
})
# As the vendor's table has structs: the size, then offset, kind, count and name of each field.
STRUCTS = MappingProxyType({
    "measured_clock_domains": "8;0 u32 1 domains;4 u32 1 word1",
    "measured_clock_kinds": "8;0 u32 1 word0;4 u32 1 kinds",
    "measured_domains_of_kinds":
        "520;0 u32 1 word0;4 u32 1 listCount;8 measured_domain_of_kind 32 list",
    "measured_domain_of_kind": "16;0 u32 1 kind;4 u32 1 domain;8 u32 1 word2;12 u32 1 percent",
    "measured_highest_clocks":
        "532;0 u32 1 word0;4 u32 1 word1;8 u32 1 word2;12 u32 1 word3;16 u32 1 listCount;"
        "20 measured_highest_clock 32 list",
    "measured_highest_clock": "16;0 u32 1 domain;4 u32 1 word1;8 u32 1 kHz;12 u32 1 word3",
})  # fmt: skip
