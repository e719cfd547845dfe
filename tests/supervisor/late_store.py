"""A store that answers late."""

from stoppable.stores.base import StoreFuture, settle
from stoppable.stores.memory import MemoryStore


class Late(MemoryStore):
    """Answers the calls that add to the log of one run when it is told to, and notes in which order runs end."""

    def __init__(self):
        super().__init__()
        self.ended = []
        self.unanswered = []
        self._is_open = False

    def append(self, run_id, epoch, events):
        reply = super().append(run_id, epoch, events)
        if self._is_open or not any(event.data.get("name") == "held up" for event in events):
            return reply
        late = StoreFuture()
        self.unanswered.append((late, reply.result(), None))
        return late

    def finish(self, run_id, *rest):
        self.ended.append(run_id)
        return super().finish(run_id, *rest)

    def release(self):
        self._is_open = True
        settle(self.unanswered)
