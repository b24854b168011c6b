# cython: binding=False, cdivision=True
"""A bounded queue of messages that can also be taken from its middle, compiled.

Contract and prose: ``reference/mailbox.py``.
"""

from actorgrid.errors import BadRequest

LIMIT_MAX = 1 << 30


cdef int mail_grow(Mail mail) except -1:
    """Double the ring."""
    cdef unsigned int size, place
    cdef list ring
    if mail.ring is None:
        mail.ring = [None] * RING_SIZE_FIRST
    else:
        size = <unsigned int>len(mail.ring)
        ring = mail.ring[mail.head:] + mail.ring[: mail.head] + [None] * size
        mail.ring = ring
    mail.head = 0
    return 0


cdef object mail_take(Mail mail, unsigned int place):
    """Take out the message at a place that is in use; those behind it move up."""
    cdef unsigned int mask, at, following
    if place == 0:
        return mail_pop(mail)
    mask = <unsigned int>len(mail.ring) - 1
    at = (mail.head + place - 1) & mask
    item = mail.ring[at]
    for place in range(place, mail.count - 1):
        following = (at + 1) & mask
        mail.ring[at] = mail.ring[following]
        at = following
    mail.ring[at] = None
    mail.count -= 1
    return item


cdef int mail_clear(Mail mail) except -1:
    """Let go of all. What destructors put in meanwhile goes, too."""
    while mail.count:
        mail_pop(mail)
    mail.ring = None
    mail.head = 0
    return 0


cdef class Mail:
    pass


cdef class Mailbox(Mail):
    def __cinit__(self, limit):
        if not 1 <= limit <= LIMIT_MAX:
            raise BadRequest("a limit out of range", asked=str(limit), hint=f"1 to {LIMIT_MAX}")
        self.limit = limit

    def __len__(self):
        return self.count

    def push(self, message):
        """Put *message* behind the others; ``False``, and nothing is done, when the mailbox is full."""
        if self.count >= self.limit:
            return False
        mail_push(self, message)
        return True

    def pop(self):
        """Take out the oldest message. Raises IndexError when there is none."""
        if not self.count:
            raise IndexError("the mailbox is empty")
        return mail_pop(self)

    def peek(self, place):
        """The message at *place*, 0 for the oldest, which stays. Raises IndexError."""
        if not 0 <= place < self.count:
            raise IndexError(f"no message at {place}")
        return mail_at(self, place)

    def take(self, place):
        """Take out the message at *place*, 0 for the oldest; those behind it move up. Raises IndexError."""
        if not 0 <= place < self.count:
            raise IndexError(f"no message at {place}")
        return mail_take(self, place)

    def clear(self):
        """Drop all messages."""
        mail_clear(self)
