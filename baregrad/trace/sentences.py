"""A sentence on what a call is for, from its name."""

from __future__ import annotations

import re
from types import MappingProxyType

from baregrad.trace.decode import DriverCall

# Such controls the driver hands to the firmware as they are: rmapi_deprecated.h:41.
_FIRMWARE = 0x8000
_VERBS = MappingProxyType({
    "NV_ESC_CARD_INFO": "Asks which GPUs there are.",
    "NV_ESC_REGISTER_FD": "Ties this descriptor to the client's control descriptor.",
    "NV_ESC_CHECK_VERSION_STR": "Checks that library and kernel driver are of one release.",
    "NV_ESC_SYS_PARAMS": "Asks for the size of memory blocks of this machine.",
    "NV_ESC_ATTACH_GPUS_TO_FD": "Makes sure that these GPUs stay initialised.",
    "NV_ESC_RM_FREE": "Frees an object and all below it.",
    "NV_ESC_RM_MAP_MEMORY": "Prepares a descriptor, so that mmap of it shows memory of an object.",
    "NV_ESC_RM_UNMAP_MEMORY": "Undoes a mapping for the processor.",
    "NV_ESC_RM_MAP_MEMORY_DMA": "Maps memory into an address space of the GPU.",
    "NV_ESC_RM_UNMAP_MEMORY_DMA": "Takes memory out of an address space of the GPU.",
    "NV_ESC_RM_DUP_OBJECT": "Makes a second handle for an object, maybe of another client.",
    "NV_ESC_RM_ALLOC_MEMORY": "Pins memory of this process, so that the GPU can reach it.",
    "NV_ESC_RM_SHARE": "Lets another client use an object.",
    "NV_ESC_ALLOC_OS_EVENT": "Makes a descriptor that wakes up when the driver has an event.",
    "NV_ESC_RM_IDLE_CHANNELS": "Waits until channels have no work.",
    "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO": "Tells the driver where a mapping lies.",
    "NV_ESC_NUMA_INFO": "Asks to which NUMA node the GPU's memory belongs.",
    "NV_ESC_WAIT_OPEN_COMPLETE": "Waits until a GPU has been opened.",
    "NV_ESC_FREE_OS_EVENT": "Lets go of a descriptor for events.",
    "NV_ESC_RM_VID_HEAP_CONTROL": "Allocates memory, in the way before RM_ALLOC.",
    "NV_ESC_RM_ALLOC_OBJECT": "Makes an object, in the way before RM_ALLOC.",
    "NV_ESC_EXPORT_TO_DMABUF_FD": "Makes a descriptor of memory for other drivers.",
    "UVM_INITIALIZE": "Begins an address space shared by processor and GPUs.",
    "UVM_REGISTER_GPU": "Adds a GPU to the shared address space.",
    "UVM_REGISTER_GPU_VASPACE": "Gives the GPU's page tables to the unified memory driver.",
    "UVM_REGISTER_CHANNEL": "Maps what a channel needs of buffers into the address space.",
    "UVM_CREATE_EXTERNAL_RANGE": "Reserves addresses for memory that is mapped explicitly.",
    "UVM_MAP_EXTERNAL_ALLOCATION": "Maps an allocation at addresses of the GPU.",
    "UVM_UNMAP_EXTERNAL": "Takes an allocation out of the GPU's addresses.",
    "UVM_FREE": "Gives a range of addresses back.",
    "UVM_PAGEABLE_MEM_ACCESS": "Asks whether the GPU can reach ordinary memory.",
    "UVM_UNREGISTER_GPU": "Takes a GPU out of the shared address space.",
    "UVM_UNREGISTER_GPU_VASPACE": "Takes page tables back from the unified memory driver.",
    "UVM_UNREGISTER_CHANNEL": "Undoes what was mapped for a channel.",
    "UVM_CREATE_RANGE_GROUP": "Makes a group of ranges that move together.",
    "UVM_DESTROY_RANGE_GROUP": "Undoes a group of ranges.",
    "UVM_ALLOC_SEMAPHORE_POOL": "Allocates memory for semaphores of GPUs and the processor.",
    "UVM_MAP_DYNAMIC_PARALLELISM_REGION": "Maps what launches by the GPU itself need.",
    "UVM_MIGRATE": "Moves pages to a GPU or to the processor.",
    "UVM_SET_PREFERRED_LOCATION": "Says where pages had best lie.",
    "UVM_SET_ACCESSED_BY": "Says that a GPU uses pages wherever they lie.",
    "UVM_MM_INITIALIZE": "Ties the address space to the life of this process.",
    "UVM_ENABLE_PEER_ACCESS": "Lets two GPUs reach each other's memory.",
    "UVM_VALIDATE_VA_RANGE": "Asks whether addresses belong to a range.",
    "mmap": "Shows this process what was prepared for the descriptor.",
    "munmap": "Takes a mapping out of this process.",
})  # fmt: skip
# What classes are for, by parts of their names; the first that fits counts.
_OBJECTS = (
    ("CONFIDENTIAL", "a right to ask about confidential computing"),
    ("MPS_COMPUTE", "a channel's way to a server of several processes"),
    ("USERMODE", "the page with the doorbell"), ("GPFIFO", "a channel: a ring of work"),
    ("CHANNEL_GROUP", "a group of channels that take turns as one"),
    ("_COMPUTE_", "the compute engine of a channel"), ("DMA_COPY", "the copy engine of a channel"),
    ("VASPACE", "an address space of the GPU"), ("CONTEXT_SHARE", "a part of a group's context"),
    ("ROOT", "a client, the root of all objects"),
    ("SUBDEVICE_MASTER", "a way to the registers that engines of a GPU share"),
    ("SUBDEVICE", "one GPU of a device"), ("MEMORY_VIRTUAL", "a range of virtual addresses"),
    ("MEMORY_LOCAL", "memory of the GPU"), ("MEMORY_SYSTEM", "memory of the machine"),
    ("MEMORY_FABRIC", "memory that other machines may reach"),
    ("MULTICAST", "memory that several GPUs write at once"),
    ("INLINE_TO_MEMORY", "the engine of a channel that writes what is in its ring"),
    ("MEMORY", "memory"), ("PROFILER", "a profiler"), ("DEVICE", "a device"),
    ("SHARED_DATA", "a page where the driver says how the GPU is"),
    ("SMC_CONFIG", "a right to divide GPUs"),
    ("SMC_MONITOR", "a right to see how GPUs are divided"),
    ("SMC_PARTITION", "a part of a divided GPU"), ("SMC_EXEC", "a share of such a part"),
    ("BINAPI", "a way to the GPU's firmware"), ("EVENT", "a notification"),
    ("DEBUGGER", "a debugger of a context"),
    ("P2P", "a path between GPUs"), ("DISP", "a display"), ("VIDEO", "a video engine of a channel"),
)  # fmt: skip
# Who is asked, by how a control's name begins; channels have 6F as their last digits.
_ASKED = MappingProxyType({
    "NV0000": "the driver", "NV0073": "the display", "NV0080": "the device", "NV2080": "the GPU",
    "NV2081": "the GPU's firmware", "NV208F": "the GPU", "NV90E6": "the GPU", "NV90E7": "the GPU",
    "NV9096": "the GPU", "NVA06C": "the group of channels", "NV9067": "the part of a context",
    "NV83DE": "the debugger", "NV503C": "the path between GPUs", "NVB0CC": "the profiler",
    "NV90CC": "the profiler", "NV90F1": "the address space", "NV0041": "the memory",
    "NV003E": "the memory", "NV00F8": "the fabric memory", "NV00FD": "the fabric memory",
    "NV0002": "the context", "NV00DE": "the page of the driver's", "NVC637": "the part of a GPU",
    "NVC638": "the share of a part", "NV_CONF_COMPUTE": "the driver", "subdevice": "the GPU",
    "device": "the device",
})  # fmt: skip
# Controls of the driver's own are called as its functions are.
_FUNCTION = re.compile(r"(subdevice|device)CtrlCmd(\w+)")
_QUESTIONS = frozenset({"get", "query", "read", "is", "has"})


def explained(call: DriverCall) -> str:
    """Return one sentence on what a call is for."""
    if call.verb == "NV_ESC_RM_CONTROL" and not call.known and call.subject:
        number = int(call.subject.split()[1], 16)
        sentence = "Asks the GPU's firmware, through the driver" if number & _FIRMWARE else "Asks"
        sentence += f" by a control that no published header names: {call.subject}."
    elif call.measured:
        sentence = f"Asks the GPU's firmware, through the driver: {call.subject}, which no "
        sentence += "published header names."
    elif call.verb == "NV_ESC_RM_CONTROL" and call.subject:
        sentence = _of_control(call.subject)
    elif call.verb == "NV_ESC_RM_ALLOC":
        what = next((name for key, name in _OBJECTS if key in f"{call.subject}_"), "an object")
        sentence = f"Makes {what} ({call.subject})."
    elif call.verb in ("open", "close"):
        sentence = f"{call.verb.capitalize()}s {call.raw.node}."
    elif call.verb in _VERBS:
        sentence = _VERBS[call.verb]
    else:
        whom = "the driver of unified memory" if call.verb.startswith("UVM_") else "the driver"
        words = re.sub("^(NV_ESC_RM_|NV_ESC_|UVM_)", "", call.verb).replace("_", " ").lower()
        sentence = f"Calls {whom}: {words}."
    return sentence[:-1] + f": refused, {call.answer}." if call.failed else sentence


def _of_control(name: str) -> str:
    """The sentence of a control: who is asked or told, and what."""
    function = _FUNCTION.fullmatch(name)
    if function:
        begin, words = function[1], re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", function[2]).lower()
    else:
        begin, _, words = re.sub("_CTRL_CMD_", "_CTRL_", name, count=1).partition("_CTRL_")
        words = words.replace("_", " ").lower()
    who = _ASKED.get(begin) or ("the channel" if begin.endswith("6F") else "an object")
    verb = "Asks" if _QUESTIONS & set(words.split()) else "Tells"
    return f"{verb} {who}: {words or name}."
