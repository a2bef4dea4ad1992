"""How the pool's workers are kept off the processor that the submitting thread runs on.

The submitter never sleeps while it computes. A worker that is woken on its processor stands in line
behind it, for some milliseconds, while another processor idles: systems do that, guests of virtual
machines above all, which take an idle processor for one that the host has stopped. So before it
wakes workers the submitter takes its own processor out of their affinity masks, where it has moved
since; the one that it was on before comes back. A mask that somebody else has set meanwhile is
taken as it is, and none becomes empty: the system refuses such a mask.
Source: Linux, kernel/sched/fair.c, `select_idle_sibling` and `available_idle_cpu`; the numbers of
the system calls: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

# In the pool: 64 the processor that workers are kept off (i32), -1 none; 68 whether they are (i32);
# 72 whether it was in their masks (i64); 272 the mask that they were given last.
POOL_KEPT_OFF = 64
POOL_KEEPS_OFF = 68
# Masks have room for this many processors; on larger machines affinities are left as they are.
MASK_BITS = 1024

KEEP_WORKERS_OFF = """
declare i32 @sched_getcpu()

define internal void @keep_apart(ptr %pool) noinline nounwind {
entry:
  %given = alloca [{MASK_WORDS} x i64]
  %mask = alloca [{MASK_WORDS} x i64]
  %wantedp = getelementptr i8, ptr %pool, i64 {KEEPS_APART}
  %wanted = load i32, ptr %wantedp
  %free = icmp eq i32 %wanted, 0
  br i1 %free, label %out, label %where
where:
  %cpu = call i32 @sched_getcpu()
  %beforep = getelementptr i8, ptr %pool, i64 {APART_FROM}
  %before = load i32, ptr %beforep
  %same = icmp eq i32 %cpu, %before
  %unknown = icmp uge i32 %cpu, {MASK_BITS}
  %leave = or i1 %same, %unknown
  br i1 %leave, label %out, label %moved
moved:
  store i32 %cpu, ptr %beforep
  %lastp = getelementptr i8, ptr %pool, i64 272
  call void @llvm.memcpy.p0.p0.i64(ptr %given, ptr %lastp, i64 {MASK_BYTES}, i1 false)
  %cpu64 = zext i32 %cpu to i64
  %word = lshr i64 %cpu64, 6
  %place = and i64 %cpu64, 63
  %bit = shl i64 1, %place
  %others = xor i64 %bit, -1
  %tookp = getelementptr i8, ptr %pool, i64 72
  %took = load i64, ptr %tookp
  %some = icmp ne i64 %took, 0
  %from = select i1 %some, i32 %before, i32 0
  %from64 = zext i32 %from to i64
  store i64 0, ptr %tookp
  %oldword = lshr i64 %from64, 6
  %oldplace = and i64 %from64, 63
  %back = shl i64 1, %oldplace
  %countp = getelementptr i8, ptr %pool, i64 56
  %count = load i64, ptr %countp
  br label %next
next:
  %i = phi i64 [ 1, %moved ], [ %i1, %go ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %worker, label %out
worker:
  %off = shl i64 %i, 7
  %at = add i64 %off, 544
  %threadp = getelementptr i8, ptr %pool, i64 %at
  %thread = load i32, ptr %threadp
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 {MASK_BYTES}, i1 false)
  %got = call i64 (i64, ...) @syscall(i64 {GETAFFINITY}, i32 %thread, i64 {MASK_BYTES},
                                      ptr %mask)
  %known = icmp sgt i64 %got, 0
  br i1 %known, label %compare, label %go
compare:
  %j = phi i64 [ 0, %worker ], [ %j1, %word2 ]
  %differs = phi i64 [ 0, %worker ], [ %differs1, %word2 ]
  %compared = icmp eq i64 %j, {MASK_WORDS}
  br i1 %compared, label %return, label %word2
word2:
  %nowp = getelementptr i64, ptr %mask, i64 %j
  %now = load i64, ptr %nowp
  %thenp = getelementptr i64, ptr %given, i64 %j
  %then = load i64, ptr %thenp
  %changed = xor i64 %now, %then
  %differs1 = or i64 %differs, %changed
  %j1 = add i64 %j, 1
  br label %compare
return:
  %untouched = icmp eq i64 %differs, 0
  %returns = and i1 %untouched, %some
  %returned = select i1 %returns, i64 %back, i64 0
  %oldp = getelementptr i64, ptr %mask, i64 %oldword
  %old = load i64, ptr %oldp
  %old1 = or i64 %old, %returned
  store i64 %old1, ptr %oldp
  %newp = getelementptr i64, ptr %mask, i64 %word
  %new = load i64, ptr %newp
  %kept = and i64 %new, %others
  store i64 %kept, ptr %newp
  %r = call i64 (i64, ...) @syscall(i64 {SETAFFINITY}, i32 %thread, i64 {MASK_BYTES}, ptr %mask)
  %set = icmp eq i64 %r, 0
  br i1 %set, label %note, label %go
note:
  %taken = and i64 %new, %bit
  store i64 %taken, ptr %tookp
  call void @llvm.memcpy.p0.p0.i64(ptr %lastp, ptr %mask, i64 {MASK_BYTES}, i1 false)
  br label %go
go:
  %i1 = add i64 %i, 1
  br label %next
out:
  ret void
}
"""
