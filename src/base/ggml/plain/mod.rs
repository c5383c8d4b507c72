//! Computes a graph by plain loops in f64: the referee for the kernels of ggml and of this project.
//!
//! It is slow, has one thread, and shares no arithmetic with the kernels: tensors are decoded, an operation is computed
//! by its formula, and the result is rounded once, to the type of the tensor. ggml decodes quantised weights. The
//! tensors use the memory of the loaded graph.

mod array;
mod attention;
mod elementwise;
mod matrix;
mod recurrent;
mod rope;
mod rows;
mod special;

use ggml_sys as sys;

use array::{PlainArray, PlainNode};

use super::error::Error;
use super::ops::Graph;

enum PlainOutcome {
    All(PlainArray),
    /// The operation has written its result itself, or has none.
    Written,
}

/// Computes every node of a graph whose tensors have host memory, in the order of execution.
pub(super) fn run(graph: &Graph) -> Result<(), Error> {
    for at in 0..graph.n_nodes() {
        // SAFETY: the index is below the number of nodes.
        let ptr = unsafe { sys::ggml_graph_node(graph.as_ptr(), at as i32) };
        let node = PlainNode::new(ptr)?;
        if let PlainOutcome::All(result) = compute(&node)? {
            node.write(&result)?;
        }
    }
    Ok(())
}

fn compute(node: &PlainNode) -> Result<PlainOutcome, Error> {
    let op = node.op();
    let all = match op.as_str() {
        "NONE" | "RESHAPE" | "VIEW" | "PERMUTE" | "TRANSPOSE" => return Ok(PlainOutcome::Written),
        "SET_ROWS" => {
            rows::set_rows(node)?;
            return Ok(PlainOutcome::Written);
        }
        "ADD" => elementwise::binary(node, |a, b| a + b),
        "SUB" => elementwise::binary(node, |a, b| a - b),
        "MUL" => elementwise::binary(node, |a, b| a * b),
        "DIV" => elementwise::binary(node, |a, b| a / b),
        "SCALE" => elementwise::scale(node),
        "CLAMP" => elementwise::clamp(node),
        "FILL" => elementwise::fill(node),
        "REGLU" | "GEGLU" | "GEGLU_TANH" | "GEGLU_ERF" | "SWIGLU" | "SWIGLU_OAI" => {
            elementwise::glu(node, &op)
        }
        "DUP" | "CPY" | "CONT" => node.input(0)?.reshaped(node.shape()),
        "CONCAT" => rows::concat(node),
        "REPEAT" => rows::repeat(node),
        "GET_ROWS" => rows::get_rows(node),
        "ARGSORT" => rows::argsort(node),
        "TOP_K" => rows::top_k(node),
        "SUM_ROWS" => rows::sum(node),
        "POOL_2D" => rows::max_of(node),
        "RMS_NORM" => rows::rms_norm(node),
        "NORM" => rows::layer_norm(node),
        "L2_NORM" => rows::l2_norm(node),
        "MUL_MAT" => matrix::mul_mat(node),
        "MUL_MAT_ID" => matrix::mul_mat_id(node),
        "ADD_ID" => matrix::add_id(node),
        "SOFT_MAX" => attention::soft_max(node),
        "FLASH_ATTN_EXT" => attention::flash(node),
        "PAGED_ATTENTION" => attention::paged(node),
        "SELECT_KEYS" => attention::select(node),
        "ROPE" => rope::rope(node),
        "DSV4_HC_COMB" => matrix::sinkhorn(node),
        "SSM_CONV" => recurrent::conv(node),
        "CONVOLVE" => recurrent::convolve(node),
        "SSM_SCAN" => recurrent::scan(node),
        "GATED_DELTA_NET" => recurrent::gated_delta_net(node),
        "RWKV_WKV6" => recurrent::wkv6(node),
        "GATED_LINEAR_ATTN" => recurrent::gated_linear_attention(node),
        "RWKV_WKV7" => recurrent::wkv7(node),
        other => match elementwise::unary(other) {
            Some(f) => elementwise::map(node, |x| f(node, x)),
            None => {
                let message = format!("`{}`: the referee has no formula of it", node.name());
                return Err(node.fault(&message));
            }
        },
    };
    Ok(PlainOutcome::All(all?))
}
