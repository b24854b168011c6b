"""What ran on a device and when: events in whole nanoseconds, from CUPTI or PyTorch's profiler, for Perfetto."""
