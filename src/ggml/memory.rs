//! Memory that the C library holds and nobody uses, and memory that was mapped and is lost.

/// From now on an access to a mapped file that is not there any more, because it was cut short or its disk fails, ends this
/// process with a message and exit code 1 rather than by a signal.
pub fn report_bus_errors() {
    // SAFETY: takes no pointer; the handler calls only what handlers may call.
    unsafe { ggml_sys::shim_report_bus_errors() }
}

/// Gives it back to the operating system, where the C library can; takes milliseconds.
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

/// Makes the C library give large pieces of memory back as soon as they are freed, and all threads share two heaps. Without
/// it, each thread keeps what its largest request took, and the resident memory of a server grows for as long as there is a
/// thread that had no such request.
pub fn return_large_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        const TRIM_THRESHOLD: c_int = -1;
        const MMAP_THRESHOLD: c_int = -3;
        const ARENA_MAX: c_int = -8;
        const LARGE: c_int = 4 << 20;
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
