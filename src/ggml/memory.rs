//! Memory that the C library holds and nobody uses.

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
