//! Elementwise operations.

use super::super::error::Error;
use super::array::{PlainArray, PlainNode};
use super::special::erf;

/// `f` applied to each element of the first source.
pub(super) fn map(node: &PlainNode, f: impl Fn(f64) -> f64) -> Result<PlainArray, Error> {
    let mut array = node.input(0)?;
    for value in &mut array.values {
        *value = f(*value);
    }
    Ok(array)
}

/// `f` applied to the elements of two sources, the second repeated to the shape of the first.
pub(super) fn binary(node: &PlainNode, f: impl Fn(f64, f64) -> f64) -> Result<PlainArray, Error> {
    let (mut a, b) = (node.input(0)?, node.input(1)?);
    let n = b.shape[0];
    for at in a.rows() {
        let other = b.row(std::array::from_fn(|dim| at[dim] % b.shape[dim + 1]));
        for (i, value) in a.row_mut(at).iter_mut().enumerate() {
            *value = f(*value, other[i % n]);
        }
    }
    Ok(a)
}

pub(super) fn scale(node: &PlainNode) -> Result<PlainArray, Error> {
    let (factor, offset) = (node.param(0), node.param(1));
    map(node, |x| x * factor + offset)
}

pub(super) fn clamp(node: &PlainNode) -> Result<PlainArray, Error> {
    let (min, max) = (node.param(0), node.param(1));
    // NaN becomes the largest number, by the order of the comparisons.
    map(node, |x| match x < max {
        true => x.max(min),
        false => max,
    })
}

pub(super) fn fill(node: &PlainNode) -> Result<PlainArray, Error> {
    let value = node.param(0);
    map(node, |_| value)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gelu(x: f64) -> f64 {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    0.5 * x * (1.0 + (root * x * (1.0 + 0.044715 * x * x)).tanh())
}

fn gelu_erf(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

fn xielu(node: &PlainNode, x: f64) -> f64 {
    let [alpha_n, alpha_p, beta, eps] = [1, 2, 3, 4].map(|at| node.param(at));
    match x > 0.0 {
        true => alpha_p * x * x + beta * x,
        false => (x.min(eps).exp_m1() - x) * alpha_n + beta * x,
    }
}

type Activation = fn(&PlainNode, f64) -> f64;

pub(super) fn unary(op: &str) -> Option<Activation> {
    Some(match op {
        "SQR" => |_, x| x * x,
        "SQRT" => |_, x| x.sqrt(),
        "LOG" => |_, x| x.ln(),
        "SIN" => |_, x| x.sin(),
        "COS" => |_, x| x.cos(),
        "ABS" => |_, x| x.abs(),
        "NEG" => |_, x| -x,
        "STEP" => |_, x| f64::from(x > 0.0),
        "TANH" => |_, x| x.tanh(),
        "RELU" => |_, x| x.max(0.0),
        "SIGMOID" => |_, x| sigmoid(x),
        "GELU" | "GELU_TANH" => |_, x| gelu(x),
        "GELU_ERF" => |_, x| gelu_erf(x),
        "SILU" => |_, x| x * sigmoid(x),
        "EXP" => |_, x| x.exp(),
        "SOFTPLUS" => |_, x| super::special::softplus(x),
        "XIELU" => xielu,
        _ => return None,
    })
}

pub(super) fn glu(node: &PlainNode, op: &str) -> Result<PlainArray, Error> {
    let (mut gate, up) = (node.input(0)?, node.input(1)?);
    let (alpha, limit) = (node.param(2), node.param(3));
    let f = |x: f64, y: f64| match op {
        "REGLU" => x.max(0.0) * y,
        "GEGLU" | "GEGLU_TANH" => gelu(x) * y,
        "GEGLU_ERF" => gelu_erf(x) * y,
        "SWIGLU" => x * sigmoid(x) * y,
        _ => {
            let (x, y) = (x.min(limit), y.clamp(-limit, limit));
            x * sigmoid(alpha * x) * (y + 1.0)
        }
    };
    for (x, y) in gate.values.iter_mut().zip(&up.values) {
        *x = f(*x, *y);
    }
    Ok(gate)
}
