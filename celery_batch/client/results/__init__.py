"""
The results of this process' calls, and who waits for them.

Whether something tells of an end, or the backend has to be asked, says `BatchResult.notified`:

* Notified: one thread of the `Listener` receives notifications, another polls in case one is
  missed.  Both deliver to `PendingResults`, which calls the callbacks of a `PendingResult`.
* Not notified, as on other backends than Redis: the thread of the `Poller` asks the backend.
* Not sent by this process, or waited for by Celery's own code: Celery receives it.

What waits registers a callback that wakes it:

* A thread in `BatchResult.get`, or of a group: a `ThreadWaiter`'s queue.
* A coroutine: an asyncio future, which a `LoopWaker` completes.
* A `concurrent.futures.Future`, as of `as_completed`: it is set with the value.
* A `StateIterator`, in a thread or a coroutine: as the first two, for the next state, too.
"""
