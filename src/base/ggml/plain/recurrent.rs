//! Operations that carry a state over time. Their results are one row of all outputs, then all new states.

use super::super::error::Error;
use super::array::{PlainArray, PlainNode};
use super::special::softplus;

/// Convolves each channel over time: `x [k - 1 + n, channels, seqs]`, `weight [k, channels]` -> `[channels, n, seqs]`.
pub(super) fn conv(node: &PlainNode) -> Result<PlainArray, Error> {
    let (x, weight) = (node.input(0)?, node.input(1)?);
    let k = weight.shape[0];
    let mut out = PlainArray::zeros(node.shape());
    for at @ [time, sequence, _] in out.rows() {
        for (channel, value) in out.row_mut(at).iter_mut().enumerate() {
            let window = &x.row([channel, sequence, 0])[time..time + k];
            let products = window.iter().zip(weight.row([channel, 0, 0]));
            *value = products.map(|(x, w)| x * w).sum();
        }
    }
    Ok(out)
}

/// [`conv`] with the last columns of each sequence before it; the new last columns follow the outputs:
/// `x [channels, n, seqs]`, `states [kept * channels, rows]`, `ids [seqs]`, `weight [k, channels]`.
pub(super) fn convolve(node: &PlainNode) -> Result<PlainArray, Error> {
    let (x, states, ids) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (weight, step) = (node.input(3)?, node.int(8) as usize);
    let ([channels, n, n_sequences, _], k) = (x.shape, weight.shape[0]);
    let kept = (k - 1) * step;
    let mut out = PlainArray::zeros(node.shape());
    let (outputs, last) = out.values.split_at_mut(x.values.len());
    for sequence in 0..n_sequences {
        let state = states.row([ids.index(sequence, [0, 0, 0]), 0, 0]);
        for channel in 0..channels {
            let mut columns = state[kept * channel..][..kept].to_vec();
            columns.extend((0..n).map(|t| x.at(channel, [t, sequence, 0])));
            for t in 0..n {
                let products = weight.row([channel, 0, 0]).iter().enumerate();
                let products = products.map(|(j, w)| w * columns[t + j * step]);
                outputs[x.row_at([t, sequence, 0]) + channel] = products.sum();
            }
            let at = kept * (channel + channels * sequence);
            last[at..at + kept].copy_from_slice(&columns[n..]);
        }
    }
    Ok(out)
}

pub(super) fn scan(node: &PlainNode) -> Result<PlainArray, Error> {
    let [states, x, dt, a, b, c, ids] = node.inputs([0, 1, 2, 3, 4, 5, 6])?;
    let [n_state, d, heads, _] = states.shape;
    let [_, _, n_times, n_sequences] = x.shape;
    let per_group = heads / b.shape[1];
    let mut out = PlainArray::zeros(node.shape());
    let (outputs, new) = out.values.split_at_mut(x.values.len());
    for sequence in 0..n_sequences {
        let row = ids.index(sequence, [0, 0, 0]);
        for head in 0..heads {
            let group = head / per_group;
            for i in 0..d {
                let mut state = states.row([i, head, row]).to_vec();
                for time in 0..n_times {
                    let step = softplus(dt.at(head, [time, sequence, 0]));
                    let input = x.at(i, [head, time, sequence]) * step;
                    let (b, c) = (
                        b.row([group, time, sequence]),
                        c.row([group, time, sequence]),
                    );
                    let mut y = 0.0;
                    for (n, s) in state.iter_mut().enumerate() {
                        let decay = (step * a.at(n % a.shape[0], [head, 0, 0])).exp();
                        *s = *s * decay + b[n] * input;
                        y += *s * c[n];
                    }
                    outputs[x.row_at([head, time, sequence]) + i] = y;
                }
                let at = n_state * (i + d * (head + heads * sequence));
                new[at..at + n_state].copy_from_slice(&state);
            }
        }
    }
    Ok(out)
}

/// The gated delta rule (Yang et al. 2024). The state of a head has a row of the keys' size for each element of the
/// values.
pub(super) fn gated_delta_net(node: &PlainNode) -> Result<PlainArray, Error> {
    let [q, k, v] = node.inputs([0, 1, 2])?;
    let [gate, beta, states] = node.inputs([3, 4, 5])?;
    let [d, heads, n_times, n_sequences] = v.shape;
    let scale = 1.0 / (d as f64).sqrt();
    let mut out = PlainArray::zeros(node.shape());
    let (outputs, new) = out.values.split_at_mut(v.values.len());
    for sequence in 0..n_sequences {
        for head in 0..heads {
            let at = d * d * (head + heads * sequence);
            let state = &mut new[at..at + d * d];
            state.copy_from_slice(&states.values[at..at + d * d]);
            for time in 0..n_times {
                let of_keys = [head % k.shape[1], time, sequence];
                let place = [head, time, sequence];
                let (q, k, v) = (q.row(of_keys), k.row(of_keys), v.row(place));
                let (gate, beta) = (gate.row(place), beta.at(0, place));
                for (j, row) in state.chunks_exact_mut(d).enumerate() {
                    for (i, s) in row.iter_mut().enumerate() {
                        *s *= gate[i % gate.len()].exp();
                    }
                    let found: f64 = row.iter().zip(k).map(|(s, k)| s * k).sum();
                    let change = (v[j] - found) * beta;
                    row.iter_mut().zip(k).for_each(|(s, k)| *s += change * k);
                    let y: f64 = row.iter().zip(q).map(|(s, q)| s * q).sum();
                    outputs[d * (head + heads * (time + n_times * sequence)) + j] = y * scale;
                }
            }
        }
    }
    Ok(out)
}

/// Runs the heads of a linear recurrence: `f` changes the state of a head (`[d, d]`) by the values at one time, which
/// are rows of `d` elements of the sources, and adds to the head's output.
fn by_head(
    node: &PlainNode,
    inputs: &[PlainArray],
    states: &PlainArray,
    f: impl Fn(usize, &[&[f64]], &mut [f64], &mut [f64]),
) -> Result<PlainArray, Error> {
    let [d, heads, n, _] = inputs[0].shape;
    let n_sequences = states.values.len() / (d * d * heads);
    let mut out = PlainArray::zeros(node.shape());
    let (outputs, new) = out.values.split_at_mut(d * heads * n);
    new.copy_from_slice(&states.values);
    for time in 0..n {
        let sequence = time / (n / n_sequences);
        for head in 0..heads {
            let rows: Vec<&[f64]> = inputs.iter().map(|x| x.row([head, time, 0])).collect();
            let at = d * d * (head + heads * sequence);
            let out = &mut outputs[d * (head + heads * time)..][..d];
            f(head, &rows, &mut new[at..at + d * d], out);
        }
    }
    Ok(out)
}

/// `y = r (S + bonus k v)`, then `S = decay S + k v` (Peng et al. 2024). A row of the state belongs to an element of
/// the keys.
pub(super) fn wkv6(node: &PlainNode) -> Result<PlainArray, Error> {
    let inputs = node.inputs([0, 1, 2, 4])?;
    let (bonus, states) = (node.input(3)?, node.input(5)?);
    by_head(node, &inputs, &states, |head, rows, state, out| {
        let &[k, v, r, decay] = rows else { return };
        let d = k.len();
        for (i, row) in state.chunks_exact_mut(d).enumerate() {
            for (j, s) in row.iter_mut().enumerate() {
                let product = k[i] * v[j];
                out[j] += (*s + bonus.values[head * d + i] * product) * r[i];
                *s = *s * decay[i] + product;
            }
        }
    })
}

/// `S = decay S + k v`, then `y = scale q S` (Yang et al. 2023).
pub(super) fn gated_linear_attention(node: &PlainNode) -> Result<PlainArray, Error> {
    let inputs = node.inputs([0, 1, 2, 3])?;
    let (states, scale) = (node.input(4)?, node.param(0));
    by_head(node, &inputs, &states, |_, rows, state, out| {
        let &[k, v, q, decay] = rows else { return };
        for (i, row) in state.chunks_exact_mut(k.len()).enumerate() {
            for (j, s) in row.iter_mut().enumerate() {
                *s = *s * decay[i] + k[i] * v[j];
                out[j] += *s * q[i] * scale;
            }
        }
    })
}

/// `S = S decay + (S a) b + v k`, then `y = S r` (Peng et al. 2025). A row of the state belongs to an element of
/// the values.
pub(super) fn wkv7(node: &PlainNode) -> Result<PlainArray, Error> {
    let (inputs, states) = (node.inputs([0, 1, 2, 3, 4, 5])?, node.input(6)?);
    by_head(node, &inputs, &states, |_, rows, state, out| {
        let &[r, decay, k, v, a, b] = rows else {
            return;
        };
        for (i, row) in state.chunks_exact_mut(k.len()).enumerate() {
            let found: f64 = row.iter().zip(a).map(|(s, a)| s * a).sum();
            for (j, s) in row.iter_mut().enumerate() {
                *s = *s * decay[j] + v[i] * k[j] + found * b[j];
                out[i] += *s * r[j];
            }
        }
    })
}
