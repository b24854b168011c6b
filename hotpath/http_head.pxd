"""What other kernels may call of the reader of heads."""

cpdef object read_usual_head(bytes data, dict kinds, tuple ours)
cpdef object read_usual_answer(bytes data, dict kinds, tuple ours)
