//! Texts of clients in error messages.

/// Text from a client, shortened for an error message.
pub(crate) fn quoted(text: &str) -> String {
    const MAX: usize = 64;
    let mut chars = text.chars();
    let start: String = chars.by_ref().take(MAX).collect();
    match chars.next() {
        None => start,
        Some(_) => format!("{start}…"),
    }
}
