//! The end of the process.

/// Ends the process with an exit code, at once: without destructors, which would wait for a running computation, and
/// without the handlers that libraries have for the end of a process. A device's driver shuts down there, and ggml
/// aborts where a thread still uses the device. What standard output buffers is lost.
pub fn end_process(code: i32) -> ! {
    unsafe extern "C" {
        fn _exit(code: std::ffi::c_int) -> !;
    }
    // SAFETY: takes no pointer and does not return.
    unsafe { _exit(code) }
}
