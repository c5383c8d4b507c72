//! ggml's messages as `tracing` events.

use std::ffi::{c_char, c_void};
use std::io::Write;
use std::sync::Once;

use ggml_sys as sys;

static INSTALLED: Once = Once::new();

/// Sends ggml's log, and its last message before an abort, through `tracing`.
pub(super) fn install() {
    INSTALLED.call_once(|| {
        // SAFETY: both callbacks live as long as the program and take no user data.
        unsafe {
            sys::ggml_log_set(Some(on_log), std::ptr::null_mut());
            sys::ggml_set_abort_callback(Some(on_abort));
        }
    });
}

unsafe extern "C" fn on_log(level: sys::ggml_log_level, message: *const c_char, _: *mut c_void) {
    // SAFETY: ggml passes a NUL-terminated message.
    let message = unsafe { super::c_text::text(message) };
    let message = message.trim_end();
    if message.is_empty() {
        return;
    }
    match level {
        sys::GGML_LOG_LEVEL_ERROR => tracing::error!(target: "ggml", "{message}"),
        sys::GGML_LOG_LEVEL_WARN => tracing::warn!(target: "ggml", "{message}"),
        sys::GGML_LOG_LEVEL_INFO => tracing::debug!(target: "ggml", "{message}"),
        _ => tracing::trace!(target: "ggml", "{message}"),
    }
}

unsafe extern "C" fn on_abort(message: *const c_char) {
    // SAFETY: ggml passes a NUL-terminated message.
    let message = unsafe { super::c_text::text(message) };
    if tracing::dispatcher::has_been_set() {
        tracing::error!(target: "ggml", "ggml gives up: {message}");
    } else {
        // The process ends next, and nobody else says why.
        let _ = writeln!(std::io::stderr(), "ggml gives up: {message}");
    }
}
