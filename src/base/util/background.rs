//! Threads that work in the background.

/// Lets the system prefer all other threads to the calling one, where it can.
pub fn yield_to_others() {
    // On Linux the priority is that of the thread, elsewhere that of the process, which stays.
    #[cfg(target_os = "linux")]
    {
        let _ = rustix::process::setpriority_process(None, 19);
    }
}
