"""The services that kernels call, as LLVM IR: the thread pool, scratch memory, and the loop that times kernels. They
are compiled when a process first needs them, or into an exported kernel.

A parallel loop is a number of *tasks*, and each call of its function runs a range of them. The thread that starts the
loop is the *caller*; the other threads of the pool are its *workers*. One 64-bit word holds the state of the pool::

    bits 63..32  generation: grows with every parallel loop; idle workers sleep on it (futex)
    bit  17      the caller sleeps until the last worker has left
    bit  16      open: workers may join the loop of this generation
    bits 15..0   workers that have joined and not left

The caller holds a mutex, so that loops of several callers run one after the other. It does this::

    store function, environment, number of tasks, chunk size, the first task of each thread's part
    publish a new generation that is open; wake sleeping workers
    claim chunks until none is left
    close the loop; wait for the workers that have joined

A worker that wakes too late finds the loop closed, and nobody waits for it. One that wakes on the caller's processor
moves to another one: Linux left some there for many milliseconds, so that loops ran serially after each pause.

Each thread has a part of the tasks, the same in every loop of as many tasks: the caller the first, each worker one by
its number. Where kernels follow one another, a thread then reads what it wrote, from its own caches. Chunks of a part
are claimed from its atomic counter. A thread whose part is done claims chunks of the parts behind it, so that a slow
thread delays the others by one chunk at most. A loop that is started from inside a task, which emitted code never does,
runs serially on its thread.
"""

from .architectures import Architecture

OPEN, WAITING, ACTIVE = 1 << 16, 1 << 17, (1 << 16) - 1
CHUNKS_PER_THREAD = 8
STACK_BYTES = 8 << 20
SPINS = 2_000
"""An idle thread looks at the pool's word so many times before it sleeps. That takes some tens of microseconds."""

_THREAD_POOL = """\
@word = internal global i64 0, align 128
@next = internal global [__THREADS__ x [16 x i64]] zeroinitializer, align 128
@sleepers = internal global i32 0, align 128
@caller.cpu = internal global i32 -1, align 128
@loop.fn = internal global ptr null, align 128
@loop.env = internal global ptr null
@loop.tasks = internal global i64 0
@loop.chunk = internal global i64 1
@started = internal global i32 0
@mutex = internal global [64 x i8] zeroinitializer, align 64
@in.task = internal global i32 0
@in.task.key = internal global i32 0

define void @tilewright_parallel_for(ptr %fn, ptr %env, i64 %tasks) nounwind {
entry:
  %few = icmp slt i64 %tasks, 2
  br i1 %few, label %alone, label %nested
nested:
  %ready = load atomic i32, ptr @started acquire, align 4
  %cold = icmp eq i32 %ready, 0
  br i1 %cold, label %lock, label %inside
inside:
  %key = load i32, ptr @in.task.key, align 4
  %mark = call ptr @pthread_getspecific(i32 %key)
  %is.inside = icmp ne ptr %mark, null
  br i1 %is.inside, label %alone, label %lock
alone:
  %any = icmp sgt i64 %tasks, 0
  br i1 %any, label %run.alone, label %done
run.alone:
  call void %fn(ptr %env, i64 0, i64 %tasks)
  br label %done
lock:
  call i32 @pthread_mutex_lock(ptr @mutex)
  %now = load i32, ptr @started, align 4
  %must.start = icmp eq i32 %now, 0
  br i1 %must.start, label %start, label %publish
start:
  call void @start_threads()
  br label %publish
publish:
  store ptr %fn, ptr @loop.fn, align 8
  store ptr %env, ptr @loop.env, align 8
  store i64 %tasks, ptr @loop.tasks, align 8
  %even = udiv i64 %tasks, __CHUNKS__
  %chunk = call i64 @llvm.umax.i64(i64 %even, i64 1)
  store i64 %chunk, ptr @loop.chunk, align 8
  br label %deal
deal:
  %part = phi i64 [ 0, %publish ], [ %part.next, %deal ]
  %first = call i64 @first_task(i64 %part, i64 %tasks)
  %counter = getelementptr [16 x i64], ptr @next, i64 %part
  store atomic i64 %first, ptr %counter monotonic, align 128
  %part.next = add i64 %part, 1
  %dealt = icmp eq i64 %part.next, __THREADS__
  br i1 %dealt, label %open, label %deal
open:
  %old = load atomic i64, ptr @word monotonic, align 8
  %generation = lshr i64 %old, 32
  %grown = add i64 %generation, 1
  %shifted = shl i64 %grown, 32
  %opened = or i64 %shifted, __OPEN__
  %before = atomicrmw xchg ptr @word, i64 %opened seq_cst
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %wake = icmp ne i32 %asleep, 0
  br i1 %wake, label %wake.all, label %work
wake.all:
  %here = call i32 @sched_getcpu()
  store atomic i32 %here, ptr @caller.cpu seq_cst, align 4
  call i64 (i64, ...) @syscall(i64 __FUTEX__, ptr getelementptr (i8, ptr @word, i64 4),
    i32 129, i32 65535, ptr null)
  br label %work
work:
  call void @claim(i64 0)
  %closing = atomicrmw and ptr @word, i64 __NOT_OPEN__ seq_cst
  br label %wait
wait:
  %round = phi i32 [ 0, %work ], [ %round.next, %relax ]
  %state = load atomic i64, ptr @word acquire, align 8
  %active = and i64 %state, __ACTIVE__
  %over = icmp eq i64 %active, 0
  br i1 %over, label %unlock, label %busy
busy:
  %round.next = add i32 %round, 1
  %patient = icmp ult i32 %round.next, __SPINS__
  br i1 %patient, label %relax, label %sleep
relax:
  call void @llvm.__PAUSE__
  br label %wait
sleep:
  %asked = atomicrmw or ptr @word, i64 __WAITING__ seq_cst
  %asked.active = and i64 %asked, __ACTIVE__
  %left = icmp eq i64 %asked.active, 0
  br i1 %left, label %unlock, label %sleep.on
sleep.on:
  %expected = or i64 %asked, __WAITING__
  %expected.low = trunc i64 %expected to i32
  call i64 (i64, ...) @syscall(i64 __FUTEX__, ptr @word, i32 128, i32 %expected.low, ptr null)
  br label %sleep
unlock:
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %done
done:
  ret void
}

; Claim chunks until none is left, first of the thread's own part. The thread is marked, so that a loop inside a task is
; recognised as nested.
define internal void @claim(i64 %own) nounwind {
entry:
  %fn = load ptr, ptr @loop.fn, align 8
  %env = load ptr, ptr @loop.env, align 8
  %tasks = load i64, ptr @loop.tasks, align 8
  %chunk = load i64, ptr @loop.chunk, align 8
  %key = load i32, ptr @in.task.key, align 4
  call i32 @pthread_setspecific(i32 %key, ptr @in.task)
  br label %part
part:
  %number = phi i64 [ %own, %entry ], [ %around, %next.part ]
  %behind = add i64 %number, 1
  %stop = call i64 @first_task(i64 %behind, i64 %tasks)
  %counter = getelementptr [16 x i64], ptr @next, i64 %number
  %claimed = load atomic i64, ptr %counter monotonic, align 128
  %any = icmp ult i64 %claimed, %stop
  br i1 %any, label %more, label %next.part
more:
  %begin = atomicrmw add ptr %counter, i64 %chunk monotonic
  %left = icmp ult i64 %begin, %stop
  br i1 %left, label %run, label %next.part
run:
  %whole = add i64 %begin, %chunk
  %end = call i64 @llvm.umin.i64(i64 %whole, i64 %stop)
  call void %fn(ptr %env, i64 %begin, i64 %end)
  br label %more
next.part:
  %last = icmp eq i64 %behind, __THREADS__
  %around = select i1 %last, i64 0, i64 %behind
  %over = icmp eq i64 %around, %own
  br i1 %over, label %done, label %part
done:
  call i32 @pthread_setspecific(i32 %key, ptr null)
  ret void
}

define internal i64 @first_task(i64 %part, i64 %tasks) nounwind {
  %scaled = mul i64 %part, %tasks
  %first = udiv i64 %scaled, __THREADS__
  ret i64 %first
}

; A worker is given its number in the lowest 16 bits, and the generation at its start.
define internal ptr @worker(ptr %given) nounwind {
entry:
  %bits = ptrtoint ptr %given to i64
  %number = and i64 %bits, 65535
  %born = lshr i64 %bits, 16
  br label %idle
idle:
  %seen = phi i64 [ %born, %entry ], [ %seen, %woken ], [ %seen.now, %closed ], [ %seen.now, %leave ],
    [ %seen.now, %notify ]
  br label %spin
spin:
  %round = phi i32 [ 0, %idle ], [ %round.next, %relax ]
  %state = load atomic i64, ptr @word acquire, align 8
  %generation = lshr i64 %state, 32
  %same = icmp eq i64 %generation, %seen
  br i1 %same, label %still, label %fresh
still:
  %round.next = add i32 %round, 1
  %patient = icmp ult i32 %round.next, __SPINS__
  br i1 %patient, label %relax, label %sleep
relax:
  call void @llvm.__PAUSE__
  br label %spin
sleep:
  %count.up = atomicrmw add ptr @sleepers, i32 1 seq_cst
  %seen.low = trunc i64 %seen to i32
  call i64 (i64, ...) @syscall(i64 __FUTEX__, ptr getelementptr (i8, ptr @word, i64 4),
    i32 128, i32 %seen.low, ptr null)
  br label %woken
woken:
  %count.down = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  call void @leave_caller()
  br label %idle
fresh:
  %found = phi i64 [ %state, %spin ], [ %other, %join ]
  %seen.now = lshr i64 %found, 32
  %open.bit = and i64 %found, __OPEN__
  %is.open = icmp ne i64 %open.bit, 0
  br i1 %is.open, label %join, label %closed
closed:
  br label %idle
join:
  %joined = add i64 %found, 1
  %exchange = cmpxchg ptr @word, i64 %found, i64 %joined acq_rel acquire
  %other = extractvalue { i64, i1 } %exchange, 0
  %in = extractvalue { i64, i1 } %exchange, 1
  br i1 %in, label %work, label %fresh
work:
  call void @claim(i64 %number)
  %last = atomicrmw sub ptr @word, i64 1 seq_cst
  %flags = and i64 %last, __WAITING_OR_ACTIVE__
  %must.notify = icmp eq i64 %flags, __WAITING_AND_ONE__
  br i1 %must.notify, label %notify, label %leave
leave:
  br label %idle
notify:
  call i64 (i64, ...) @syscall(i64 __FUTEX__, ptr @word, i32 129, i32 1, ptr null)
  br label %idle
}

; A worker that wakes on the caller's processor waits there while the caller works. It moves to another one, if it may.
define internal void @leave_caller() nounwind noinline {
entry:
  %allowed = alloca [1024 x i8], align 16
  %others = alloca [1024 x i8], align 16
  %here = call i32 @sched_getcpu()
  %caller = load atomic i32, ptr @caller.cpu seq_cst, align 4
  %same = icmp eq i32 %here, %caller
  %known = icmp sge i32 %here, 0
  %meets = and i1 %same, %known
  br i1 %meets, label %ask, label %done
ask:
  %failed = call i32 @sched_getaffinity(i32 0, i64 1024, ptr %allowed)
  %got = icmp eq i32 %failed, 0
  br i1 %got, label %move, label %done
move:
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %allowed, i64 1024, i1 false)
  %byte = lshr i32 %here, 3
  %bit = and i32 %here, 7
  %at = getelementptr i8, ptr %others, i32 %byte
  %held = load i8, ptr %at
  %place = trunc i32 %bit to i8
  %mark = shl i8 1, %place
  %rest = xor i8 %mark, -1
  %without = and i8 %held, %rest
  store i8 %without, ptr %at
  %refused = call i32 @sched_setaffinity(i32 0, i64 1024, ptr %others)
  %moved = icmp eq i32 %refused, 0
  br i1 %moved, label %restore, label %done
restore:
  call i32 @sched_setaffinity(i32 0, i64 1024, ptr %allowed)
  br label %done
done:
  ret void
}

; Workers block the signals that a program handles: those belong to its own threads.
define internal void @start_threads() nounwind {
entry:
  %id = alloca i64, align 8
  %attributes = alloca [64 x i8], align 16
  %mask = alloca [128 x i8], align 16
  %kept = alloca [128 x i8], align 16
  %need.key = load i32, ptr @key.made, align 4
  %no.key = icmp eq i32 %need.key, 0
  br i1 %no.key, label %make.key, label %start
make.key:
  call i32 @pthread_key_create(ptr @in.task.key, ptr null)
  store i32 1, ptr @key.made, align 4
  br label %start
start:
  call i32 @sigfillset(ptr %mask)
  call i32 @sigdelset(ptr %mask, i32 4)
  call i32 @sigdelset(ptr %mask, i32 7)
  call i32 @sigdelset(ptr %mask, i32 8)
  call i32 @sigdelset(ptr %mask, i32 11)
  call i32 @pthread_sigmask(i32 2, ptr %mask, ptr %kept)
  call i32 @pthread_attr_init(ptr %attributes)
  call i32 @pthread_attr_setdetachstate(ptr %attributes, i32 1)
  call i32 @pthread_attr_setstacksize(ptr %attributes, i64 __STACK__)
  %word = load atomic i64, ptr @word monotonic, align 8
  %generation = lshr i64 %word, 32
  %born = shl i64 %generation, 16
  br label %each
each:
  %n = phi i64 [ 1, %start ], [ %n.next, %create ]
  %more = icmp ult i64 %n, __THREADS__
  br i1 %more, label %create, label %done
create:
  %numbered = or i64 %born, %n
  %given = inttoptr i64 %numbered to ptr
  call i32 @pthread_create(ptr %id, ptr %attributes, ptr @worker, ptr %given)
  %n.next = add i64 %n, 1
  br label %each
done:
  call i32 @pthread_attr_destroy(ptr %attributes)
  call i32 @pthread_sigmask(i32 2, ptr %kept, ptr null)
  store atomic i32 1, ptr @started release, align 4
  ret void
}
@key.made = internal global i32 0

; After fork() the child has no workers. It forgets them and any lock that a thread of the parent held.
define void @tilewright_after_fork() nounwind {
entry:
  %word = load atomic i64, ptr @word monotonic, align 8
  %generation = and i64 %word, -4294967296
  store atomic i64 %generation, ptr @word monotonic, align 8
  store atomic i32 0, ptr @sleepers monotonic, align 4
  call void @llvm.memset.p0.i64(ptr @mutex, i8 0, i64 64, i1 false)
  store atomic i32 0, ptr @started release, align 4
  ret void
}

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_attr_setdetachstate(ptr, i32)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sigdelset(ptr, i32)
declare i64 @syscall(i64, ...)
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

_SERVICES = """\
@scratch.key = internal global i32 0
@scratch.made = internal global i32 0

; This is called once, before any kernel runs. It makes the key under which each thread keeps its scratch block.
define void @tilewright_prepare() nounwind {
entry:
  %made = load i32, ptr @scratch.made, align 4
  %again = icmp ne i32 %made, 0
  br i1 %again, label %done, label %make
make:
  call i32 @pthread_key_create(ptr @scratch.key, ptr @free)
  store i32 1, ptr @scratch.made, align 4
  br label %done
done:
  ret void
}

; Returns the thread's block, grown to ``bytes`` if it is smaller. Its size is in the 64 bytes before the result.
; A large block is asked for in pages of 2 MiB: small pages lie anywhere, and half of the L2 cache stays idle.
define ptr @tilewright_scratch(i64 %bytes) nounwind {
entry:
  %key = load i32, ptr @scratch.key, align 4
  %block = call ptr @pthread_getspecific(i32 %key)
  %none = icmp eq ptr %block, null
  br i1 %none, label %grow, label %check
check:
  %size = load i64, ptr %block, align 8
  %enough = icmp uge i64 %size, %bytes
  br i1 %enough, label %done, label %grow
grow:
  call void @free(ptr %block)
  %large = icmp uge i64 %bytes, 1048576
  %unit = select i1 %large, i64 2097152, i64 64
  %last = sub i64 %unit, 1
  %with.size = add i64 %bytes, 64
  %rounded = add i64 %with.size, %last
  %mask = sub i64 0, %unit
  %whole = and i64 %rounded, %mask
  %fresh = call ptr @aligned_alloc(i64 %unit, i64 %whole)
  %failed = icmp eq ptr %fresh, null
  br i1 %failed, label %out.of.memory, label %got
out.of.memory:
  call void @abort()
  unreachable
got:
  br i1 %large, label %advise, label %keep
advise:
  call i32 @madvise(ptr %fresh, i64 %whole, i32 14) ; MADV_HUGEPAGE
  br label %keep
keep:
  store i64 %bytes, ptr %fresh, align 8
  call i32 @pthread_setspecific(i32 %key, ptr %fresh)
  br label %done
done:
  %found = phi ptr [ %block, %check ], [ %fresh, %keep ]
  %usable = getelementptr i8, ptr %found, i64 64
  ret ptr %usable
}

; Returns the seconds of ``launches`` calls of ``fn`` in a row. They rotate through the ``count`` arrays of ``sets``.
define double @tilewright_time(ptr %fn, ptr %sets, i64 %count, i64 %launches) nounwind {
entry:
  %start = call i64 @now()
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]
  %which = phi i64 [ 0, %entry ], [ %which.next, %loop ]
  %at = getelementptr ptr, ptr %sets, i64 %which
  %args = load ptr, ptr %at, align 8
  %status = call i32 %fn(ptr %args)
  %which.more = add i64 %which, 1
  %wrap = icmp eq i64 %which.more, %count
  %which.next = select i1 %wrap, i64 0, i64 %which.more
  %i.next = add i64 %i, 1
  %over = icmp uge i64 %i.next, %launches
  br i1 %over, label %done, label %loop
done:
  %stop = call i64 @now()
  %nanoseconds = sub i64 %stop, %start
  %real = sitofp i64 %nanoseconds to double
  %seconds = fdiv double %real, 1.0e9
  ret double %seconds
}

; Calls ``count`` functions in a row. ``calls`` has the address of each and of its arguments, pair by pair.
define void @tilewright_run(ptr %calls, i64 %count) nounwind {
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]
  %pair = getelementptr [2 x ptr], ptr %calls, i64 %i
  %fn = load ptr, ptr %pair, align 8
  %args.at = getelementptr ptr, ptr %pair, i64 1
  %args = load ptr, ptr %args.at, align 8
  %status = call i32 %fn(ptr %args)
  %i.next = add i64 %i, 1
  %over = icmp uge i64 %i.next, %count
  br i1 %over, label %done, label %loop
done:
  ret void
}

; Returns CLOCK_MONOTONIC (1) in nanoseconds.
define internal i64 @now() nounwind {
entry:
  %spec = alloca [2 x i64], align 16
  call i32 @clock_gettime(i32 1, ptr %spec)
  %whole = load i64, ptr %spec, align 8
  %rest.at = getelementptr i64, ptr %spec, i64 1
  %rest = load i64, ptr %rest.at, align 8
  %scaled = mul i64 %whole, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}

declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare void @free(ptr)
declare ptr @aligned_alloc(i64, i64)
declare i32 @madvise(ptr, i64, i32)
declare void @abort() noreturn
"""


def thread_pool_ir(architecture: Architecture, threads: int, spins: int = SPINS) -> str:
    """Return the pool for ``threads`` threads, the caller included. Idle threads look ``spins`` times at the word
    before they sleep. Futexes are private: FUTEX_WAIT | FUTEX_PRIVATE_FLAG = 128, FUTEX_WAKE | FUTEX_PRIVATE_FLAG =
    129."""
    texts = {
        "CHUNKS": threads * CHUNKS_PER_THREAD,
        "OPEN": OPEN,
        "NOT_OPEN": ~OPEN,
        "ACTIVE": ACTIVE,
        "WAITING": WAITING,
        "WAITING_OR_ACTIVE": WAITING | ACTIVE,
        "WAITING_AND_ONE": WAITING | 1,
        "FUTEX": architecture.futex_syscall,
        "PAUSE": architecture.pause,
        "SPINS": spins,
        "STACK": STACK_BYTES,
        "THREADS": threads,
    }
    text = _head(architecture) + _THREAD_POOL
    for name, value in texts.items():
        text = text.replace(f"__{name}__", str(value))
    return text


def services_ir(architecture: Architecture) -> str:
    """Return what a process needs once, whatever the number of threads: scratch blocks and the timing loop."""
    return _head(architecture) + _SERVICES


def _head(architecture: Architecture) -> str:
    return f'target triple = "{architecture.triple}"\n'
