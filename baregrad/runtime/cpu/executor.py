"""The native executor, as the LLVM IR that we write by hand, and the memory that it shares.

`baregrad_submit(pool, list)` runs a bound command list. The submitting thread is participant 0;
workers are threads in `baregrad_worker(participant)`. For a parallel command the chunks are split
into one contiguous range for each participant, so that a thread meets the same data again in the
next command. Each takes half of what is left of its range at a time, then helps others with
theirs. The submitting thread waits for chunks, not for threads: a worker that is asleep, or was
stopped by the system, costs nothing as long as it holds no chunk.

What keeps this safe:
- A participant's word is (sequence << 16 | units taken) and only grows. Taking is a
  compare-and-swap from an older or the present sequence, so each unit is taken once.
- A command's descriptor lies in one of two places, by the parity of its sequence. A worker reads
  sequence, descriptor, sequence again: if the sequence still stands the descriptor was whole.
- Who holds a chunk keeps the command from ending, so commands and buffers stay where they are.
- A worker announces its sleep before it looks for work once more, and the submitter publishes
  work before it looks for sleepers, both in sequentially consistent order: no wake-up is lost.

Offsets in the pool: 0 sequence, 8 and 24 the two descriptors (command, chunks), 40 shutdown,
48 spins before sleeping, 56 participants; 128 wake word (i32), 132 sleepers (i32); 256 chunks
done (i64), 264 submitter asleep (i32); 512 + 128 p, participant p: 0 its word, 8 scratch,
16 pool, 24 index, 32 its thread's number (i32). Bytes 64 to 80 and 272 are worker_affinity.py's.
A list is 0 commands, 8 their number, 16 patches, 24 their number, 32 slots, 40 times or null. A
command is 0 function, 8 buffers, 16 variables, 24 chunks, 32 serial, and is 64 bytes long. A patch
is the place to write to, the slot and the offset to add.
"""

from __future__ import annotations

from baregrad.base.errors import UnsupportedDevice
from baregrad.runtime.cpu.worker_affinity import (
    KEEP_WORKERS_OFF,
    MASK_BITS,
    POOL_KEEPS_OFF,
    POOL_KEPT_OFF,
)

POOL_SPINS = 48
POOL_PARTICIPANTS = 56
PARTICIPANT_AT = 512
PARTICIPANT_NBYTES = 128
THREAD_AT = 32
COMMAND_WORDS = 8
LIST_WORDS = 8
COPY_CHUNK_NBYTES = 256 << 10

SUBMIT = "baregrad_submit"
WORKER = "baregrad_worker"
STOP = "baregrad_stop"
PAUSE = "baregrad_pause"
COPY = "baregrad_copy"
FILL = "baregrad_fill"

# By machine: the numbers of the calls futex, gettid, sched_getaffinity and sched_setaffinity, the
# pause of a spin loop, the reading and setting of the floating-point control register, and what
# non-temporal stores are followed by. Kernels always run with the default control register
# (round to nearest, no flushing of subnormals), whatever the caller's library has set in its
# thread, or results would depend on the thread.
_MACHINES = (
    (
        "x86_64",
        ("202", "186", "204", "203"),
        "call void @llvm.x86.sse2.pause()",
        "%fp = alloca i32\n  call void @llvm.x86.sse.stmxcsr(ptr %fp)",
        """%fpd = alloca i32
  store i32 8064, ptr %fpd
  call void @llvm.x86.sse.ldmxcsr(ptr %fpd)""",
        "call void @llvm.x86.sse.ldmxcsr(ptr %fp)",
        "call void @llvm.x86.sse.sfence()",
        """declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.sfence()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)""",
    ),
    (
        "aarch64",
        ("98", "178", "123", "122"),
        "call void @llvm.aarch64.hint(i32 1)",
        "%fp = call i64 @llvm.aarch64.get.fpcr()",
        "call void @llvm.aarch64.set.fpcr(i64 0)",
        "call void @llvm.aarch64.set.fpcr(i64 %fp)",
        "fence release",
        """declare void @llvm.aarch64.hint(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)""",
    ),
)


def executor_source(machine: str) -> str:
    """Return the executor as LLVM IR text for "x86_64" or "aarch64", Linux."""
    for name, calls, pause, save, default, restore, fence, declare in _MACHINES:
        if name == machine:
            text = _DATA + _WAKE + KEEP_WORKERS_OFF + _SHARE + _PUBLISH + _SUBMIT + _WORKER
            marks = ("FUTEX", "GETTID", "GETAFFINITY", "SETAFFINITY")
            for mark, value in (
                *zip(marks, calls, strict=True),
                ("APART_FROM", str(POOL_KEPT_OFF)),
                ("KEEPS_APART", str(POOL_KEEPS_OFF)),
                ("MASK_BITS", str(MASK_BITS)),
                ("MASK_BYTES", str(MASK_BITS // 8)),
                ("MASK_WORDS", str(MASK_BITS // 64)),
                ("PAUSE", pause),
                ("SAVE_FP", save),
                ("DEFAULT_FP", default),
                ("RESTORE_FP", restore),
                ("STREAM_FENCE", fence),
                ("LINE", _line_copied()),
                ("COPY_CHUNK", str(COPY_CHUNK_NBYTES)),
            ):
                text = text.replace("{" + mark + "}", value)
            return text + declare + "\n!0 = !{i32 1}\n"
    raise UnsupportedDevice(f"the native executor does not run on {machine!r}")


def _line_copied() -> str:
    """A line from %s + %i to %d + %i, non-temporal: the first of them must be aligned."""
    lines = []
    for at in range(0, 64, 16):
        lines.append(f"""  %o{at} = add i64 %i, {at}
  %f{at} = getelementptr i8, ptr %s, i64 %o{at}
  %t{at} = getelementptr i8, ptr %d, i64 %o{at}
  %v{at} = load <2 x i64>, ptr %f{at}, align 1
  store <2 x i64> %v{at}, ptr %t{at}, align 16, !nontemporal !0""")
    return "\n".join(lines)


# The variables of a copy are its bytes, and whether what is written passes the caches by.
_DATA = """
declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define void @baregrad_copy(ptr %buffers, ptr %vars, i64 %from, i64 %to, ptr %scratch) nounwind {
entry:
  %nbytes = load i64, ptr %vars
  %begin = mul i64 %from, {COPY_CHUNK}
  %last = mul i64 %to, {COPY_CHUNK}
  %over = icmp sgt i64 %last, %nbytes
  %end = select i1 %over, i64 %nbytes, i64 %last
  %size = sub i64 %end, %begin
  %dst = load ptr, ptr %buffers
  %srcp = getelementptr i8, ptr %buffers, i64 8
  %src = load ptr, ptr %srcp
  %d = getelementptr i8, ptr %dst, i64 %begin
  %s = getelementptr i8, ptr %src, i64 %begin
  %flagp = getelementptr i8, ptr %vars, i64 8
  %flag = load i64, ptr %flagp
  %place = ptrtoint ptr %d to i64
  %beside = and i64 %place, 15
  %aligned = icmp eq i64 %beside, 0
  %large = icmp ne i64 %flag, 0
  %both = and i1 %aligned, %large
  %whole = and i64 %size, -64
  %some = icmp sgt i64 %whole, 0
  %streamed = and i1 %both, %some
  br i1 %streamed, label %line, label %rest
line:
  %i = phi i64 [ 0, %entry ], [ %n, %line ]
{LINE}
  %n = add i64 %i, 64
  %more = icmp slt i64 %n, %whole
  br i1 %more, label %line, label %fence
fence:
  {STREAM_FENCE}
  br label %rest
rest:
  %done = phi i64 [ 0, %entry ], [ %whole, %fence ]
  %dr = getelementptr i8, ptr %d, i64 %done
  %sr = getelementptr i8, ptr %s, i64 %done
  %left = sub i64 %size, %done
  call void @llvm.memcpy.p0.p0.i64(ptr %dr, ptr %sr, i64 %left, i1 false)
  ret void
}

define void @baregrad_fill(ptr %buffers, ptr %vars, i64 %from, i64 %to, ptr %scratch) nounwind {
  %nbytes = load i64, ptr %vars
  %bytep = getelementptr i8, ptr %vars, i64 8
  %byte = load i8, ptr %bytep
  %begin = mul i64 %from, {COPY_CHUNK}
  %last = mul i64 %to, {COPY_CHUNK}
  %over = icmp sgt i64 %last, %nbytes
  %end = select i1 %over, i64 %nbytes, i64 %last
  %size = sub i64 %end, %begin
  %dst = load ptr, ptr %buffers
  %d = getelementptr i8, ptr %dst, i64 %begin
  call void @llvm.memset.p0.i64(ptr %d, i8 %byte, i64 %size, i1 false)
  ret void
}
"""

_WAKE = """
define internal void @wake(ptr %pool, i32 %count) noinline nounwind {
  %word = getelementptr i8, ptr %pool, i64 128
  %old = atomicrmw add ptr %word, i32 1 seq_cst
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %word, i32 129, i32 %count,
                                    ptr null, ptr null, i32 0)
  ret void
}

define void @baregrad_stop(ptr %pool) nounwind {
  %flag = getelementptr i8, ptr %pool, i64 40
  store atomic i64 1, ptr %flag seq_cst, align 8
  call void @wake(ptr %pool, i32 2147483647)
  ret void
}

define void @baregrad_pause(i64 %count) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %n, %loop ]
  {PAUSE}
  %n = add i64 %i, 1
  %more = icmp slt i64 %n, %count
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""

# Does chunks of one command until none is left to take, then adds them to the pool's count.
_SHARE = """
define internal void @share(ptr %pool, ptr %self, i64 %seq, ptr %command, i64 %chunks) nounwind {
entry:
  %turn = alloca i64
  %mine = alloca i64
  store i64 0, ptr %turn
  store i64 0, ptr %mine
  %countp = getelementptr i8, ptr %pool, i64 56
  %count = load i64, ptr %countp
  %indexp = getelementptr i8, ptr %self, i64 24
  %index = load i64, ptr %indexp
  %words = getelementptr i8, ptr %pool, i64 512
  br label %victims
victims:
  %t = load i64, ptr %turn
  %left = icmp ult i64 %t, %count
  br i1 %left, label %victim, label %finish
victim:
  %v0 = add i64 %index, %t
  %wraps = icmp uge i64 %v0, %count
  %v1 = sub i64 %v0, %count
  %v = select i1 %wraps, i64 %v1, i64 %v0
  %lon = mul i64 %v, %chunks
  %lo = udiv i64 %lon, %count
  %hin = add i64 %lon, %chunks
  %hi = udiv i64 %hin, %count
  %len = sub i64 %hi, %lo
  %empty = icmp eq i64 %len, 0
  br i1 %empty, label %next, label %sizes
sizes:
  %len1 = sub i64 %len, 1
  %unit0 = lshr i64 %len1, 15
  %unit = add i64 %unit0, 1
  %total0 = udiv i64 %len1, %unit
  %total = add i64 %total0, 1
  %woff = shl i64 %v, 7
  %word = getelementptr i8, ptr %words, i64 %woff
  br label %try
try:
  %w = load atomic i64, ptr %word acquire, align 8
  %ws = lshr i64 %w, 16
  %newer = icmp ugt i64 %ws, %seq
  br i1 %newer, label %finish, label %claim
claim:
  %current = icmp eq i64 %ws, %seq
  %low = and i64 %w, 65535
  %taken = select i1 %current, i64 %low, i64 0
  %rest = sub i64 %total, %taken
  %none = icmp sle i64 %rest, 0
  br i1 %none, label %next, label %take
take:
  %rest1 = add i64 %rest, 1
  %half = lshr i64 %rest1, 1
  %upto = add i64 %taken, %half
  %seqs = shl i64 %seq, 16
  %new = or i64 %seqs, %upto
  %swap = cmpxchg ptr %word, i64 %w, i64 %new acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %try
run:
  %b0 = mul i64 %taken, %unit
  %b = add i64 %lo, %b0
  %e0 = mul i64 %upto, %unit
  %e1 = add i64 %lo, %e0
  %past = icmp ugt i64 %e1, %hi
  %e = select i1 %past, i64 %hi, i64 %e1
  %fn = load ptr, ptr %command
  %buffersp = getelementptr i8, ptr %command, i64 8
  %buffers = load ptr, ptr %buffersp
  %varsp = getelementptr i8, ptr %command, i64 16
  %vars = load ptr, ptr %varsp
  %scratchp = getelementptr i8, ptr %self, i64 8
  %scratch = load ptr, ptr %scratchp
  call void %fn(ptr %buffers, ptr %vars, i64 %b, i64 %e, ptr %scratch)
  %m = load i64, ptr %mine
  %did = sub i64 %e, %b
  %m1 = add i64 %m, %did
  store i64 %m1, ptr %mine
  br label %try
next:
  %t1 = add i64 %t, 1
  store i64 %t1, ptr %turn
  br label %victims
finish:
  %sum = load i64, ptr %mine
  %idle = icmp eq i64 %sum, 0
  br i1 %idle, label %out, label %report
report:
  %done = getelementptr i8, ptr %pool, i64 256
  %old = atomicrmw add ptr %done, i64 %sum seq_cst
  %now = add i64 %old, %sum
  %all = icmp eq i64 %now, %chunks
  br i1 %all, label %tell, label %out
tell:
  %asleepp = getelementptr i8, ptr %pool, i64 264
  %asleep = load atomic i32, ptr %asleepp seq_cst, align 4
  %sleeps = icmp ne i32 %asleep, 0
  br i1 %sleeps, label %rouse, label %out
rouse:
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %done, i32 129, i32 1,
                                    ptr null, ptr null, i32 0)
  br label %out
out:
  ret void
}
"""

# Offers a command to the workers, takes part, and waits until all of its chunks are done.
_PUBLISH = """
define internal void @publish(ptr %pool, ptr %command, i64 %chunks) nounwind {
entry:
  %spun = alloca i64
  %last = load i64, ptr %pool
  %seq = add i64 %last, 1
  %parity = and i64 %seq, 1
  %side = shl i64 %parity, 4
  %place = add i64 %side, 8
  %slot = getelementptr i8, ptr %pool, i64 %place
  %slotc = getelementptr i8, ptr %slot, i64 8
  %bits = ptrtoint ptr %command to i64
  fence release
  store atomic i64 %bits, ptr %slot monotonic, align 8
  store atomic i64 %chunks, ptr %slotc monotonic, align 8
  %done = getelementptr i8, ptr %pool, i64 256
  store atomic i64 0, ptr %done monotonic, align 8
  %before = atomicrmw xchg ptr %pool, i64 %seq seq_cst
  %sleepersp = getelementptr i8, ptr %pool, i64 132
  %sleepers = load atomic i32, ptr %sleepersp seq_cst, align 4
  %some = icmp ne i32 %sleepers, 0
  br i1 %some, label %rouse, label %awhile
rouse:
  call void @keep_apart(ptr %pool)
  call void @wake(ptr %pool, i32 2)
  br label %work
awhile:
  %turn = and i64 %seq, 63
  %due = icmp eq i64 %turn, 0
  br i1 %due, label %look, label %work
look:
  call void @keep_apart(ptr %pool)
  br label %work
work:
  %self = getelementptr i8, ptr %pool, i64 512
  call void @share(ptr %pool, ptr %self, i64 %seq, ptr %command, i64 %chunks)
  store i64 0, ptr %spun
  %spinsp = getelementptr i8, ptr %pool, i64 48
  %spins = load i64, ptr %spinsp
  br label %spin
spin:
  %d = load atomic i64, ptr %done acquire, align 8
  %ready = icmp eq i64 %d, %chunks
  br i1 %ready, label %out, label %again
again:
  {PAUSE}
  %s = load i64, ptr %spun
  %s1 = add i64 %s, 1
  store i64 %s1, ptr %spun
  %patient = icmp ult i64 %s1, %spins
  br i1 %patient, label %spin, label %sleep
sleep:
  %asleep = getelementptr i8, ptr %pool, i64 264
  store atomic i32 1, ptr %asleep seq_cst, align 4
  br label %check
check:
  %d2 = load atomic i64, ptr %done seq_cst, align 8
  %ready2 = icmp eq i64 %d2, %chunks
  br i1 %ready2, label %awake, label %wait
wait:
  %seen = trunc i64 %d2 to i32
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %done, i32 128, i32 %seen,
                                    ptr null, ptr null, i32 0)
  br label %check
awake:
  store atomic i32 0, ptr %asleep seq_cst, align 4
  br label %out
out:
  ret void
}
"""

_SUBMIT = """
define internal void @stamp(ptr %times, i64 %index) nounwind {
  %now = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 1, ptr %now)
  %seconds = load i64, ptr %now
  %restp = getelementptr i8, ptr %now, i64 8
  %rest = load i64, ptr %restp
  %scaled = mul i64 %seconds, 1000000000
  %ns = add i64 %scaled, %rest
  %place = getelementptr i64, ptr %times, i64 %index
  store i64 %ns, ptr %place
  ret void
}

define void @baregrad_submit(ptr %pool, ptr %list) nounwind {
entry:
  %i = alloca i64
  {SAVE_FP}
  {DEFAULT_FP}
  %countp = getelementptr i8, ptr %list, i64 8
  %count = load i64, ptr %countp
  %patchesp = getelementptr i8, ptr %list, i64 16
  %patches = load ptr, ptr %patchesp
  %npatchesp = getelementptr i8, ptr %list, i64 24
  %npatches = load i64, ptr %npatchesp
  %slotsp = getelementptr i8, ptr %list, i64 32
  %slots = load ptr, ptr %slotsp
  %timesp = getelementptr i8, ptr %list, i64 40
  %times = load ptr, ptr %timesp
  %timed = icmp ne ptr %times, null
  %commands = load ptr, ptr %list
  %nthreadsp = getelementptr i8, ptr %pool, i64 56
  %nthreads = load i64, ptr %nthreadsp
  %alone = icmp eq i64 %nthreads, 1
  store i64 0, ptr %i
  br label %patch
patch:
  %p = load i64, ptr %i
  %pmore = icmp slt i64 %p, %npatches
  br i1 %pmore, label %apply, label %start
apply:
  %poff = mul i64 %p, 24
  %row = getelementptr i8, ptr %patches, i64 %poff
  %place = load ptr, ptr %row
  %slotp = getelementptr i8, ptr %row, i64 8
  %slot = load i64, ptr %slotp
  %addp = getelementptr i8, ptr %row, i64 16
  %add = load i64, ptr %addp
  %basep = getelementptr i64, ptr %slots, i64 %slot
  %base = load i64, ptr %basep
  %address = add i64 %base, %add
  store i64 %address, ptr %place
  %p1 = add i64 %p, 1
  store i64 %p1, ptr %i
  br label %patch
start:
  store i64 0, ptr %i
  br label %loop
loop:
  %k = load i64, ptr %i
  br i1 %timed, label %clock, label %test
clock:
  call void @stamp(ptr %times, i64 %k)
  br label %test
test:
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %end
body:
  %coff = shl i64 %k, 6
  %command = getelementptr i8, ptr %commands, i64 %coff
  %chunksp = getelementptr i8, ptr %command, i64 24
  %chunks = load i64, ptr %chunksp
  %serialp = getelementptr i8, ptr %command, i64 32
  %serial = load i64, ptr %serialp
  %k1 = add i64 %k, 1
  store i64 %k1, ptr %i
  %nothing = icmp sle i64 %chunks, 0
  br i1 %nothing, label %loop, label %choose
choose:
  %one = icmp eq i64 %chunks, 1
  %flagged = icmp ne i64 %serial, 0
  %quick = or i1 %one, %flagged
  %direct = or i1 %quick, %alone
  br i1 %direct, label %call, label %parallel
call:
  %fn = load ptr, ptr %command
  %buffersp = getelementptr i8, ptr %command, i64 8
  %buffers = load ptr, ptr %buffersp
  %varsp = getelementptr i8, ptr %command, i64 16
  %vars = load ptr, ptr %varsp
  %scratchp = getelementptr i8, ptr %pool, i64 520
  %scratch = load ptr, ptr %scratchp
  call void %fn(ptr %buffers, ptr %vars, i64 0, i64 %chunks, ptr %scratch)
  br label %loop
parallel:
  call void @publish(ptr %pool, ptr %command, i64 %chunks)
  br label %loop
end:
  {RESTORE_FP}
  ret void
}
"""

_WORKER = """
define ptr @baregrad_worker(ptr %self) nounwind {
entry:
  %last = alloca i64
  %spun = alloca i64
  {DEFAULT_FP}
  %poolp = getelementptr i8, ptr %self, i64 16
  %pool = load ptr, ptr %poolp
  %flag = getelementptr i8, ptr %pool, i64 40
  %spinsp = getelementptr i8, ptr %pool, i64 48
  %spins = load i64, ptr %spinsp
  %word = getelementptr i8, ptr %pool, i64 128
  %sleepers = getelementptr i8, ptr %pool, i64 132
  %thread = call i64 (i64, ...) @syscall(i64 {GETTID})
  %number = trunc i64 %thread to i32
  %numberp = getelementptr i8, ptr %self, i64 32
  store i32 %number, ptr %numberp
  store i64 0, ptr %last
  br label %watch
watch:
  store i64 0, ptr %spun
  br label %spin
spin:
  %seen = load i64, ptr %last
  %seq = load atomic i64, ptr %pool acquire, align 8
  %fresh = icmp ne i64 %seq, %seen
  br i1 %fresh, label %read, label %idle
idle:
  %stop = load atomic i64, ptr %flag acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %out, label %again
again:
  {PAUSE}
  %s = load i64, ptr %spun
  %s1 = add i64 %s, 1
  store i64 %s1, ptr %spun
  %patient = icmp ult i64 %s1, %spins
  br i1 %patient, label %spin, label %doze
doze:
  %epoch = load atomic i32, ptr %word seq_cst, align 4
  %n0 = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %seq2 = load atomic i64, ptr %pool seq_cst, align 8
  %stop2 = load atomic i64, ptr %flag seq_cst, align 8
  %fresh2 = icmp ne i64 %seq2, %seen
  %stopped2 = icmp ne i64 %stop2, 0
  %busy = or i1 %fresh2, %stopped2
  br i1 %busy, label %rise, label %sleep
sleep:
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %word, i32 128, i32 %epoch,
                                    ptr null, ptr null, i32 0)
  br label %rise
rise:
  %n1 = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  %others = icmp sgt i32 %n1, 1
  %seq3 = load atomic i64, ptr %pool seq_cst, align 8
  %fresh3 = icmp ne i64 %seq3, %seen
  %spread = and i1 %others, %fresh3
  br i1 %spread, label %pass, label %watch
pass:
  call void @wake(ptr %pool, i32 2)
  br label %watch
read:
  %parity = and i64 %seq, 1
  %side = shl i64 %parity, 4
  %place = add i64 %side, 8
  %slot = getelementptr i8, ptr %pool, i64 %place
  %slotc = getelementptr i8, ptr %slot, i64 8
  %bits = load atomic i64, ptr %slot monotonic, align 8
  %chunks = load atomic i64, ptr %slotc monotonic, align 8
  fence acquire
  %still = load atomic i64, ptr %pool monotonic, align 8
  %whole = icmp eq i64 %still, %seq
  br i1 %whole, label %join, label %watch
join:
  store i64 %seq, ptr %last
  %command = inttoptr i64 %bits to ptr
  call void @share(ptr %pool, ptr %self, i64 %seq, ptr %command, i64 %chunks)
  br label %watch
out:
  ret ptr null
}
"""
