"""Which requests run: admission in turn, pages for those that grow, and making room without loss.

Clients take turns. A request that was admitted keeps its pages until it ends, unless an older one
needs them: then the newest is moved to the host, bit for bit, and comes back before anything new.
Answers that have ended keep theirs while these are computed as a prompt's, unless anybody needs
them.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from baregrad.llm.generation.job import Job
from baregrad.llm.generation.layer_pages import PAGE
from baregrad.llm.generation.page_pool import PagePool
from baregrad.llm.generation.paged_cache import PagedCache, pages_of


class Scheduler:
    """Jobs that wait, run, or were moved out, over one cache. `most`: how many run at once."""

    def __init__(self, cache: PagedCache, most: int) -> None:
        self.cache = cache
        self.most = most
        self.running: list[Job] = []
        self.preemptions = 0
        self._moved: list[Job] = []
        self._ended: deque[Job] = deque()
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._admissions = 0

    @property
    def pool(self) -> PagePool:
        """Return whose pages are whose."""
        return self.cache.pool

    @property
    def waiting(self) -> int:
        """Return how many jobs have not begun."""
        return sum(map(len, self._waiting.values()))

    @property
    def moved(self) -> int:
        """Return how many jobs were moved out."""
        return len(self._moved)

    def jobs(self) -> list[Job]:
        """Return all jobs, whatever they do."""
        waiting = [job for queue in self._waiting.values() for job in queue]
        return [*self.begun(), *waiting]

    def begun(self) -> list[Job]:
        """Return the jobs that run or were moved out."""
        return [*self.running, *self._moved]

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        self._waiting.setdefault(job.request.client, deque()).append(job)

    def admit(self) -> None:
        """Let jobs run while there is room, those that were moved out first."""
        while self._moved and len(self.running) < self.most:
            oldest = min(self._moved, key=lambda job: job.admitted)
            if not self._move_in(oldest):
                return
            self._moved.remove(oldest)
        while not self._moved and self._waiting and len(self.running) < self.most:
            client, queue = next(iter(self._waiting.items()))
            if not self._begin(queue[0]):
                return
            queue.popleft()
            del self._waiting[client]
            if queue:
                self._waiting[client] = queue

    def next_prompt(self) -> Job | None:
        """Return the job whose prompt goes on: that which has waited longest for a chunk."""
        prompts = [job for job in self.running if job.is_prompt]
        if not prompts:
            return None
        self.running.remove(prompts[0])
        self.running.append(prompts[0])
        return prompts[0]

    def next_ended(self) -> Job | None:
        """Return an ended job of which pages are still to be computed, where nobody waits."""
        return self._ended[0] if self._ended and not (self._waiting or self._moved) else None

    @property
    def has_work(self) -> bool:
        """Whether there is anything to compute, of jobs or for those that have ended."""
        return bool(self.running or self._moved or self._waiting or self._ended)

    def answering(self) -> list[Job]:
        """Return the jobs that choose a token next, the oldest first."""
        return sorted(
            (job for job in self.running if not job.is_prompt), key=lambda job: job.admitted
        )

    def provide(self, job: Job, tokens: int) -> bool:
        """Give a job pages for so many tokens; whether it still runs.

        Newer jobs are moved out for it; where there is none, it is moved out itself.
        """
        while True:
            taken = self._take(pages_of(tokens) - len(job.pages))
            if taken is not None:
                job.pages.extend(taken)
                return True
            newest = max(self.running, key=lambda one: one.admitted)
            self._move_out(newest)
            if newest is job:
                return False

    def can_provide(self, job: Job, tokens: int) -> bool:
        """Whether there are pages for so many tokens of a job without moving another out."""
        return pages_of(tokens) - len(job.pages) <= self.pool.free

    def publish(self, job: Job) -> None:
        """Let the pages that a prompt has filled be found by others."""
        for number in range(job.published, job.full_pages()):
            self.pool.publish(job.pages[number], job.hashes[number])
        job.published = max(job.published, job.full_pages())

    def remove(self, job: Job) -> None:
        """End a job, whatever it does, and give its pages back."""
        if job in self.running:
            self.running.remove(job)
        elif job in self._moved:
            self._moved.remove(job)
        else:
            queue = self._waiting[job.request.client]
            queue.remove(job)
            if not queue:
                del self._waiting[job.request.client]
        self.pool.give_back(job.pages)
        job.pages, job.saved = [], None

    def keep(self, job: Job) -> None:
        """End a job that runs, but let the pages of its answer be computed for whoever goes on."""
        if not job.become_prompt():
            self.remove(job)
            return
        self.running.remove(job)
        whole = pages_of(job.prompt)
        self.pool.give_back(job.pages[whole:])
        del job.pages[whole:]
        self._ended.append(job)

    def let_go(self, job: Job | None = None) -> None:
        """Give back the pages of an ended job, or of all."""
        for each in [*self._ended] if job is None else [job]:
            self._ended.remove(each)
            self.pool.give_back(each.pages)
            each.pages = []

    def empty_pages(self, job: Job) -> None:
        """Write zeros into a job's own pages: what is no number must not be read beside others."""
        own = [page for page in job.pages if self.pool.owners(page) == 1]
        self.pool.forget(own)
        self.cache.clear(own)

    def _begin(self, job: Job) -> bool:
        # The last token is computed in any case: the token after it is chosen by its scores.
        found = self.pool.found(job.hashes[: job.read_from // PAGE])
        self.pool.share(found)
        taken = self._take(pages_of(job.prompt + 1) - len(found))
        if taken is None:
            self.pool.give_back(found)
            return False
        job.pages = [*found, *taken]
        job.computed = job.stream.usage.cached = len(found) * PAGE
        job.published = len(found)
        self._admissions += 1
        job.admitted = self._admissions
        self.running.append(job)
        return True

    def _take(self, count: int) -> list[int] | None:
        """Return pages, those of ended jobs if need be; None where there are too few."""
        taken = self.pool.take(count)
        while taken is None and self._ended:
            self.let_go(self._ended[0])
            taken = self.pool.take(count)
        return taken

    def _move_out(self, job: Job) -> None:
        job.saved = self.cache.copy_out(job.pages[: pages_of(job.computed)])
        self.pool.give_back(job.pages)
        job.pages = []
        self.running.remove(job)
        self._moved.append(job)
        self.preemptions += 1

    def _move_in(self, job: Job) -> bool:
        pages = self._take(pages_of(len(job.tokens)))
        if pages is None:
            return False
        self.cache.copy_in(pages[: pages_of(job.computed)], job.saved or [])
        job.pages, job.saved = pages, None
        self.running.append(job)
        return True
