"""
The results of this process' calls, and who waits for them.

Whether something tells of an end, or the backend has to be asked, says `BatchResult.notified`:

* Notified: one thread of the `Listener` receives notifications, another polls in case one is
  missed.  Both deliver to `PendingResults`, which calls the callbacks of a `PendingResult`.
* Not notified, as on other backends than Redis: the thread of the `Poller` asks the backend.
* Not sent by this process, or waited for by Celery's own code: Celery receives it.

What waits gives a function that wakes it to what finds the end, and takes it back afterwards:

* A thread in `BatchResult.get`, or of a group: a `ThreadWaiter`, for many results.
* A thread or a coroutine that waits for one: `waiting.block` or `waiting.sleep`.  Of an event loop
  a `LoopWaker` wakes many coroutines together.
* A `StateIterator`: these two, for the next state, too.
* A `concurrent.futures.Future`, as of `as_completed`: it is set with the value.

Who owns what:

* `PendingResults`, one of an app in a process: what is stored of each task, who waits, and when to
  poll, all under its lock.  The thread that has found an end calls, without the lock.
* `Listener`: the subscription, in its thread "celery-batch-replies"; its other one polls Redis.
* `Poller`: what it asks for, in its thread "celery-batch-futures" alone.
* `BatchResult`: the decoded value, in whichever thread wants it first.
"""
