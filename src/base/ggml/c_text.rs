//! Strings of ggml.

/// The version of the built-in ggml.
pub fn version() -> String {
    // SAFETY: the function takes nothing and returns a static string.
    unsafe { text(ggml_sys::ggml_version()) }
}

/// A C string of ggml as a Rust string.
///
/// # Safety
/// `ptr` is null or a NUL-terminated string that lives during the call.
pub(super) unsafe fn text(ptr: *const std::ffi::c_char) -> String {
    if ptr.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for the string.
    unsafe { std::ffi::CStr::from_ptr(ptr) }
        .to_string_lossy()
        .into_owned()
}
