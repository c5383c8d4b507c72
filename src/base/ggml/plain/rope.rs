//! Rotary position embedding (Su et al. 2021), with the mixed frequencies of YaRN (Peng et al. 2023) and with positions
//! in sections.

use super::super::error::Error;
use super::array::{PlainArray, PlainNode};

// Bits of the mode in ggml.
const NEOX: i32 = 2;
const SECTIONS: i32 = 8;
const INTERLEAVED: i32 = 40;

struct Rope {
    dims: usize,
    mode: i32,
    base: f64,
    freq_scale: f64,
    ext: f64,
    attn: f64,
    /// The first and last pair between which YaRN mixes.
    mixed: [f64; 2],
    sections: [usize; 4],
    /// Number of elements before the first rotated one.
    offset: usize,
}

impl Rope {
    fn of(node: &PlainNode) -> Self {
        let [base, freq_scale, ext, attn, fast, slow] =
            [5, 6, 7, 8, 9, 10].map(|at| node.param(at));
        let (dims, orig_ctx) = (node.int(1) as usize, f64::from(node.int(4)));
        let pair_of = |rotations: f64| {
            let n = dims as f64 * (orig_ctx / (rotations * 2.0 * std::f64::consts::PI)).ln();
            n / (2.0 * base.ln())
        };
        Self {
            dims,
            mode: node.int(2),
            base,
            freq_scale,
            ext,
            attn,
            mixed: [
                pair_of(fast).floor().max(0.0),
                pair_of(slow).ceil().min(dims as f64 - 1.0),
            ],
            sections: [11, 12, 13, 14].map(|at| node.int(at).max(0) as usize),
            offset: node.int(15).max(0) as usize,
        }
    }

    fn section(&self, pair: usize) -> usize {
        let [t, h, w, e] = self.sections;
        let n = t + h + w + e;
        if self.mode & SECTIONS == 0 || n == 0 {
            return 0;
        }
        let at = pair % n;
        if self.mode == INTERLEAVED {
            let of = at % 3;
            return if at < 3 * self.sections[of] { of } else { 3 };
        }
        match at {
            _ if at < t => 0,
            _ if at < t + h => 1,
            _ if at < t + h + w => 2,
            _ => 3,
        }
    }

    fn rotation(&self, pair: usize, position: f64, divisor: f64) -> (f64, f64) {
        let frequency = self.base.powf(-2.0 * pair as f64 / self.dims as f64);
        let own = position * frequency / divisor;
        let stretched = self.freq_scale * own;
        let (mut angle, mut magnitude) = (stretched, self.attn);
        if self.ext != 0.0 {
            let [first, last] = self.mixed;
            let along = (pair as f64 - first) / (last - first).max(0.001);
            let share = (1.0 - along.clamp(0.0, 1.0)) * self.ext;
            angle = stretched * (1.0 - share) + own * share;
            magnitude *= 1.0 + 0.1 * (1.0 / self.freq_scale).ln();
        }
        (angle.cos() * magnitude, angle.sin() * magnitude)
    }
}

pub(super) fn rope(node: &PlainNode) -> Result<PlainArray, Error> {
    let (mut a, positions) = (node.input(0)?, node.input(1)?);
    let divisors = node.optional(2)?;
    let rope = Rope::of(node);
    if !matches!(rope.mode, 0 | NEOX | SECTIONS | INTERLEAVED) {
        return Err(node.fault(&format!("the mode {}", rope.mode)));
    }
    let n = a.shape[2];
    for at @ [_, token, _] in a.rows() {
        let row = &mut a.row_mut(at)[rope.offset..rope.offset + rope.dims];
        for pair in 0..rope.dims / 2 {
            let position = positions.values[token + n * rope.section(pair)];
            let divisor = divisors.as_ref().map_or(1.0, |d| d.values[pair]);
            let (cos, sin) = rope.rotation(pair, position, divisor);
            let (i, j) = match rope.mode {
                0 => (2 * pair, 2 * pair + 1),
                _ => (pair, pair + rope.dims / 2),
            };
            let (x, y) = (row[i], row[j]);
            row[i] = x * cos - y * sin;
            row[j] = x * sin + y * cos;
        }
    }
    Ok(a)
}
