//! Operations on rows: take, write, join, sort, sum, normalise.

use super::super::error::Error;
use super::array::{PlainArray, PlainNode};

pub(super) fn get_rows(node: &PlainNode) -> Result<PlainArray, Error> {
    let (table, ids) = (node.input(0)?, node.input(1)?);
    let mut out = PlainArray::zeros(node.shape());
    for at @ [i, j, k] in out.rows() {
        let row = table.row([ids.index(i, [j, k, 0]), j, k]);
        out.row_mut(at).copy_from_slice(row);
    }
    Ok(out)
}

/// Writes the rows of the first source at the indices in the second.
pub(super) fn set_rows(node: &PlainNode) -> Result<(), Error> {
    let (values, ids) = (node.input(0)?, node.input(1)?);
    for at @ [i, j, k] in values.rows() {
        let to = ids.index(i, [j % ids.shape[1], k % ids.shape[2], 0]);
        node.write_row([to, j, k], values.row(at))?;
    }
    Ok(())
}

/// The second source after the first, in the dimension that the parameter of the operation states.
pub(super) fn concat(node: &PlainNode) -> Result<PlainArray, Error> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let mut out = PlainArray::zeros(node.shape());
    match node.int(0) {
        0 => {
            for at in out.rows() {
                let (first, second) = out.row_mut(at).split_at_mut(a.shape[0]);
                first.copy_from_slice(a.row(at));
                second.copy_from_slice(b.row(at));
            }
        }
        dim => {
            let dim = dim as usize - 1;
            let n = a.shape[dim + 1];
            for at in out.rows() {
                let mut of_b = at;
                let row = match at[dim] < n {
                    true => a.row(at),
                    false => {
                        of_b[dim] -= n;
                        b.row(of_b)
                    }
                };
                out.row_mut(at).copy_from_slice(row);
            }
        }
    }
    Ok(out)
}

pub(super) fn repeat(node: &PlainNode) -> Result<PlainArray, Error> {
    let a = node.input(0)?;
    let mut out = PlainArray::zeros(node.shape());
    for at in out.rows() {
        let row = a.row(std::array::from_fn(|dim| at[dim] % a.shape[dim + 1]));
        for (i, value) in out.row_mut(at).iter_mut().enumerate() {
            *value = row[i % row.len()];
        }
    }
    Ok(out)
}

/// The indices of a row's elements in ascending or descending order; equal elements are in their order, and what is no
/// number is last.
fn sorted(row: &[f64], descending: bool) -> Vec<usize> {
    let mut places: Vec<usize> = (0..row.len()).collect();
    places.sort_by(|a, b| {
        let (a, b) = (row[*a], row[*b]);
        let order = match descending {
            true => b.partial_cmp(&a),
            false => a.partial_cmp(&b),
        };
        order.unwrap_or(a.is_nan().cmp(&b.is_nan()))
    });
    places
}

/// The indices of all elements of each row in ascending (0) or descending order.
pub(super) fn argsort(node: &PlainNode) -> Result<PlainArray, Error> {
    let a = node.input(0)?;
    let mut out = PlainArray::zeros(node.shape());
    for at in out.rows() {
        let places = sorted(a.row(at), node.int(0) != 0);
        for (value, place) in out.row_mut(at).iter_mut().zip(places) {
            *value = place as f64;
        }
    }
    Ok(out)
}

pub(super) fn top_k(node: &PlainNode) -> Result<PlainArray, Error> {
    let a = node.input(0)?;
    let mut out = PlainArray::zeros(node.shape());
    for at in out.rows() {
        let places = sorted(a.row(at), true);
        for (value, place) in out.row_mut(at).iter_mut().zip(places) {
            *value = place as f64;
        }
    }
    Ok(out)
}

pub(super) fn sum(node: &PlainNode) -> Result<PlainArray, Error> {
    let a = node.input(0)?;
    let mut out = PlainArray::zeros(node.shape());
    for at in out.rows() {
        out.row_mut(at)[0] = a.row(at).iter().sum();
    }
    Ok(out)
}

/// The maximum of every so many consecutive elements of each row, as the parameter of the operation states.
pub(super) fn max_of(node: &PlainNode) -> Result<PlainArray, Error> {
    let a = node.input(0)?;
    let [kind, width, height, step, step_down] = [0, 1, 2, 3, 4].map(|at| node.int(at));
    if kind != 0 || width < 1 || [height, step, step_down] != [1, width, 1] {
        return Err(node.fault("other windows than adjacent ones in a row"));
    }
    let mut out = PlainArray::zeros(node.shape());
    for at in out.rows() {
        let windows = a.row(at).chunks_exact(width as usize);
        for (value, window) in out.row_mut(at).iter_mut().zip(windows) {
            *value = window.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        }
    }
    Ok(out)
}

fn by_row(node: &PlainNode, f: impl Fn(&mut [f64], f64)) -> Result<PlainArray, Error> {
    let mut a = node.input(0)?;
    for at in a.rows() {
        f(a.row_mut(at), node.param(0));
    }
    Ok(a)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len() as f64;
    values.sum::<f64>() / n
}

pub(super) fn rms_norm(node: &PlainNode) -> Result<PlainArray, Error> {
    by_row(node, |row, eps| {
        let root = (mean(row.iter().map(|x| x * x)) + eps).sqrt();
        row.iter_mut().for_each(|x| *x /= root);
    })
}

pub(super) fn layer_norm(node: &PlainNode) -> Result<PlainArray, Error> {
    by_row(node, |row, eps| {
        let middle = mean(row.iter().copied());
        row.iter_mut().for_each(|x| *x -= middle);
        let root = (mean(row.iter().map(|x| x * x)) + eps).sqrt();
        row.iter_mut().for_each(|x| *x /= root);
    })
}

pub(super) fn l2_norm(node: &PlainNode) -> Result<PlainArray, Error> {
    by_row(node, |row, eps| {
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt().max(eps);
        row.iter_mut().for_each(|x| *x /= length);
    })
}
