//! The values of a view: bytes scaled, normalised, and brought into the order of the tower.

use std::num::NonZeroU32;

use super::error::PictureError;
use super::order::{AXES, NAMES};
use super::resample::CHANNELS;
use super::resize::Picture;
use super::rules::{Normalise, Values};

/// An axis of the values.
#[derive(Clone, Copy)]
struct Axis {
    len: usize,
    /// The distance of its elements in the bytes of the picture.
    step: usize,
    is_channel: bool,
}

impl Values {
    /// The axes of the values of a picture, in the order of [`NAMES`].
    ///
    /// # Errors
    /// The picture is not made of whole blocks of patches.
    fn axes(&self, picture: &Picture) -> Result<[Axis; AXES], PictureError> {
        let size = picture.size();
        let (patch, block) = (self.patch.get() as usize, self.block.get() as usize);
        let blocks = |side: NonZeroU32| {
            let side = side.get() as usize;
            let block = patch.checked_mul(block);
            let block = block.filter(|block| side.is_multiple_of(*block));
            block.map(|block| side / block).ok_or_else(|| {
                let (patch, n) = (self.patch, self.block);
                PictureError::Rules(format!(
                    "a side of {side} pixels is not made of blocks of {n} patches of {patch} pixels"
                ))
            })
        };
        let row = picture.row_len();
        let axis = |len: usize, step: usize| Axis {
            len,
            step,
            is_channel: false,
        };
        Ok([
            Axis {
                is_channel: true,
                ..axis(CHANNELS, 1)
            },
            axis(self.frames.get() as usize, 0),
            axis(blocks(size.height)?, block * patch * row),
            axis(blocks(size.width)?, block * patch * CHANNELS),
            axis(block, patch * row),
            axis(block, patch * CHANNELS),
            axis(patch, row),
            axis(patch, CHANNELS),
        ])
    }

    /// The values of a picture, and their shape.
    ///
    /// # Errors
    /// The picture is not made of whole blocks of patches, or the order misses an axis.
    pub(super) fn of(&self, picture: &Picture) -> Result<(Vec<f32>, Vec<usize>), PictureError> {
        let axes = self.axes(picture)?;
        let order = &self.order.0;
        let is_named = |axis: usize| order.iter().flatten().any(|named| *named == axis);
        if let Some(missing) = (0..AXES).find(|i| axes[*i].len > 1 && !is_named(*i)) {
            let message = format!("the order misses the axis {}", NAMES[missing]);
            return Err(PictureError::Rules(message));
        }
        let shape = order
            .iter()
            .map(|group| group.iter().map(|i| axes[*i].len).product());
        let shape: Vec<usize> = shape.collect();
        let sorted: Vec<Axis> = order.iter().flatten().map(|i| axes[*i]).collect();
        let table = self.table();
        let mut values = Vec::with_capacity(shape.iter().product());
        walk(&sorted, picture.bytes(), 0, 0, &table, &mut values);
        Ok((values, shape))
    }

    /// The value of each byte, by channel.
    fn table(&self) -> Box<[[f32; 256]; CHANNELS]> {
        let round = |value: f32| match self.bfloat16 {
            true => half::bf16::from_f32(value).to_f32(),
            false => value,
        };
        let scale = self.scale;
        let mut table = Box::new([[0.0; 256]; CHANNELS]);
        for (channel, values) in table.iter_mut().enumerate() {
            for (byte, value) in values.iter_mut().enumerate() {
                let byte = byte as f32;
                *value = match self.normalise {
                    Some(Normalise { mean, std }) if self.bfloat16 => {
                        let (mean, std) = (round(mean[channel] as f32), round(std[channel] as f32));
                        round(round(round(byte * scale as f32) - mean) / std)
                    }
                    // Scaled and normalised at once, as torchvision's processors do.
                    Some(Normalise { mean, std }) => {
                        let whole = (1.0 / scale) as f32;
                        (byte - mean[channel] as f32 * whole) / (std[channel] as f32 * whole)
                    }
                    None => round((f64::from(byte) * scale) as f32),
                };
            }
        }
        table
    }
}

/// Appends the values along the axes, the last one fastest.
fn walk(
    axes: &[Axis],
    bytes: &[u8],
    at: usize,
    channel: usize,
    table: &[[f32; 256]; CHANNELS],
    out: &mut Vec<f32>,
) {
    let Some((axis, inner)) = axes.split_first() else {
        return;
    };
    let places = (0..axis.len).map(|i| {
        (
            at + i * axis.step,
            if axis.is_channel { i } else { channel },
        )
    });
    match inner.is_empty() {
        true => out.extend(places.map(|(at, channel)| table[channel][usize::from(bytes[at])])),
        false => places.for_each(|(at, channel)| walk(inner, bytes, at, channel, table, out)),
    }
}
