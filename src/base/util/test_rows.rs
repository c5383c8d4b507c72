//! Tables in the text of a test: for cases that would take a line for each of their parts.

/// The rows of a table: one a line, with ` ¦ ` between the parts. `⏎` is a line end, `␣` a blank, `∅` the empty text.
pub(crate) fn rows<const N: usize>(table: &'static str) -> impl Iterator<Item = [String; N]> {
    let part = |part: &str| match part {
        "∅" => String::new(),
        part => part.replace('⏎', "\n").replace('␣', " "),
    };
    table.trim().lines().map(move |line| {
        let parts: Vec<String> = line.split(" ¦ ").map(part).collect();
        parts
            .try_into()
            .unwrap_or_else(|parts| panic!("{N} parts: {parts:?}"))
    })
}
