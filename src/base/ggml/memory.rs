//! Unused memory that the C library keeps, and mapped memory that is lost.

/// From now on an access to a part of a mapped file that is lost, because the file was cut short or its disk fails,
/// ends this process with a message and exit code 1 instead of a signal.
pub fn report_bus_errors() {
    // SAFETY: takes no pointer; the handler calls only what handlers may call.
    unsafe { ggml_sys::shim_report_bus_errors() }
}

/// Returns unused memory to the operating system, where the C library can; takes milliseconds.
pub fn release_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: takes no pointer, and the C library locks its own heaps.
        unsafe {
            malloc_trim(0);
        }
    }
}

/// Makes the C library return large pieces of memory as soon as they are freed, and makes all threads share two heaps.
/// Otherwise each thread keeps the memory of its largest request, and the resident memory of a server grows with every
/// thread that handles one. Graphs and their buffers are large pieces: in a heap, each new one may fit into no gap that
/// earlier ones left.
pub fn return_large_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        const TRIM_THRESHOLD: c_int = -1;
        const MMAP_THRESHOLD: c_int = -3;
        const ARENA_MAX: c_int = -8;
        const LARGE: c_int = 512 << 10;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        // SAFETY: takes no pointer; where a value is refused, nothing changes.
        unsafe {
            mallopt(TRIM_THRESHOLD, LARGE);
            mallopt(MMAP_THRESHOLD, LARGE);
            mallopt(ARENA_MAX, 2);
        }
    }
}
