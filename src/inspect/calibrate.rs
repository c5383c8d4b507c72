//! The importance of the columns of a model's matrices, measured on a text (`llama-imatrix` of llama.cpp).

use lab_core::model::{self, Batch, Model};
use lab_core::models::quantise::Importance;

use super::evaluate::PASS;

/// Reads windows and sums the squares of the values that each matrix is multiplied with. All positions count, and the head is
/// computed for all of them. `progress` gets the number of windows done and of all.
///
/// # Errors
/// A pass fails.
pub fn calibrate(
    model: &mut Model,
    windows: &[Vec<u32>],
    text: &str,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Importance, model::Error> {
    model.start_calibration();
    let read = read(model, windows, progress);
    let tensors = model.end_calibration();
    read?;
    Ok(Importance {
        tensors,
        n_chunks: windows.len() as u32,
        chunk_size: windows.iter().map(Vec::len).max().unwrap_or(0) as u32,
        datasets: vec![text.to_owned()],
        file: None,
    })
}

fn read(
    model: &mut Model,
    windows: &[Vec<u32>],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), model::Error> {
    let mut batch = Batch::default();
    for (done, window) in (1..).zip(windows) {
        model.forget(0, 0);
        for (start, part) in (0..).step_by(PASS).zip(window.chunks(PASS)) {
            batch.clear();
            for (position, token) in (start..).zip(part) {
                batch.push(*token, 0, position, true);
            }
            model.forward(&batch)?;
        }
        progress(done, windows.len() as u64);
    }
    model.forget(0, 0);
    Ok(())
}
