"""What other kernels may call of the reader of members."""

cpdef dict json_members(str text)
cpdef Py_ssize_t opened(str text) except -1
