//! Widths of texts without a font: those of a wide sans serif face, with a margin.
//!
//! A viewer uses the first available face of the list. The table is that of the widest common one, so texts fit in all
//! of them.

/// Sizes and weights of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextStyle {
    /// The title of a picture.
    Heading,
    /// The title of a box.
    Title,
    /// The name of an operation.
    Name,
    /// The description of a box.
    Line,
    /// Formulas, shapes, tensors.
    Small,
}

impl TextStyle {
    /// Font size in pixels, at least 11.
    pub fn size(self) -> f64 {
        match self {
            Self::Heading => 20.0,
            Self::Title => 14.0,
            Self::Name | Self::Line => 12.0,
            Self::Small => 11.0,
        }
    }

    /// Line height in pixels.
    pub fn leading(self) -> f64 {
        (self.size() * 1.4).round()
    }

    /// Pixels from the baseline of a line to its bottom.
    pub(super) fn drop(self) -> f64 {
        (self.size() * 0.35).round()
    }

    pub fn class(self) -> &'static str {
        match self {
            Self::Heading => "th",
            Self::Title => "tt",
            Self::Name => "tn",
            Self::Line => "tl",
            Self::Small => "ts",
        }
    }
}

/// Widths of the characters from the space to the tilde, in thousandths of the size.
const WIDTHS: [u16; 95] = [
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636,
    636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632,
    575, 775, 752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685,
    611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579,
    278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
];
/// Width of any other character.
const OTHER: u16 = 1000;
/// Ratio of the width of bold letters to plain ones.
const BOLD: f64 = 1.14;
/// A margin for faces that are slightly wider.
const MARGIN: f64 = 1.02;

/// The width of a text in pixels: an upper bound for all faces of the list.
pub fn width(text: &str, style: TextStyle) -> f64 {
    pixels(text.chars().map(thousandths).sum(), style)
}

/// The width of a character, in thousandths of the size: an integer, so sums are exact.
fn thousandths(c: char) -> f64 {
    f64::from(match c {
        '\u{b7}' => 318,
        '\u{d7}' | '\u{2212}' | '\u{2192}' => 838,
        ' '..='~' => WIDTHS[c as usize - ' ' as usize],
        _ => OTHER,
    })
}

fn pixels(thousandths: f64, style: TextStyle) -> f64 {
    let is_bold = matches!(
        style,
        TextStyle::Heading | TextStyle::Title | TextStyle::Name
    );
    let bold = if is_bold { BOLD } else { 1.0 };
    thousandths / 1000.0 * style.size() * bold * MARGIN
}

/// A text in lines of at most `room` pixels, broken at spaces. A word that does not fit is broken after an operator, or
/// anywhere; each line has at least one character.
pub(super) fn wrap(text: &str, style: TextStyle, room: f64) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text.trim_matches(' ');
    while !rest.is_empty() {
        let (mut taken, mut space, mut operator, mut end) = (0.0, None, None, rest.len());
        // Measuring stops when the line is full, so the time is linear in the number of characters.
        for (at, c) in rest.char_indices() {
            taken += thousandths(c);
            if c == ' ' {
                space = Some(at);
            } else if at > 0 && pixels(taken, style) > room {
                end = space.or(operator).unwrap_or(at);
                break;
            } else if "\u{b7}+\u{2212}/".contains(c) {
                operator = Some(at + c.len_utf8());
            }
        }
        let (line, left) = rest.split_at(end);
        lines.push(line.trim_end_matches(' ').to_owned());
        rest = left.trim_start_matches(' ');
    }
    lines
}

pub(super) fn cut(text: &str, style: TextStyle, room: f64) -> String {
    if width(text, style) <= room {
        return text.to_owned();
    }
    let mut taken = thousandths('\u{2026}');
    let fits = |c: &char| {
        taken += thousandths(*c);
        pixels(taken, style) <= room
    };
    let mut out: String = text.chars().take_while(fits).collect();
    out.push('\u{2026}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_wider_than_their_room_and_long_words_break_after_operators() {
        let text = "each token: (ssm_kernel\u{2212}1)\u{b7}(ssm_inner+2\u{b7}ssm_groups\u{b7}ssm_state) itself";
        for room in [5.0, 60.0, 120.0, 200.0, 1000.0] {
            let lines = wrap(text, TextStyle::Small, room);
            let several = lines.iter().filter(|line| line.chars().count() > 1);
            assert!(
                several
                    .map(|line| width(line, TextStyle::Small))
                    .all(|w| w <= room)
            );
            assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
        }
        assert_eq!(wrap(text, TextStyle::Small, 1000.0), [text]);
        let lines = wrap(text.trim_end_matches(" itself"), TextStyle::Small, 200.0);
        let mut broken = lines[1..lines.len() - 1].iter();
        let are_after = broken.all(|line| line.ends_with(['+', '\u{b7}']));
        assert!(are_after, "{lines:?}");
    }

    #[test]
    fn a_cut_text_fits_and_says_so() {
        let short = cut("blk.{il}.attn_output.weight", TextStyle::Small, 80.0);
        assert!(width(&short, TextStyle::Small) <= 80.0 && short.ends_with('\u{2026}'));
        assert_eq!(cut("q", TextStyle::Small, 80.0), "q");
    }
}
