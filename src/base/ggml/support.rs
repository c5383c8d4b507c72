//! The operations over stored rows, and over time, that a device does not run.
//!
//! The processor runs an operation that a device does not run, and gets a copy of all that it reads: a whole cache. So
//! devices are asked about these operations before memory is allocated.

use ggml_sys as sys;

use super::arena::Tensor;
use super::c_text::text;
use super::device::Device;
use super::ops::Graph;
use super::profile::is_view;

/// An operation that writes or reads rows stored between passes, or carries states over time.
pub struct KeptOp {
    pub op: String,
    /// The path of the unit for which it was built.
    pub path: String,
    /// Type and shape of the rows; of a convolution those of its weight.
    pub rows: String,
    /// Whether the operation carries states over time.
    pub is_of_time: bool,
    node: Tensor,
}

impl KeptOp {
    /// Whether a device runs the operation.
    pub fn runs_on(&self, device: Device) -> bool {
        // SAFETY: device and node are alive.
        let claims =
            unsafe { sys::ggml_backend_dev_supports_op(device.as_ptr(), self.node.as_ptr()) };
        // The processor can take over an operation that reads the states of a few sequences, but not a whole cache.
        match self.is_of_time {
            true => !claims || self.has_time_kernel(&device.name()),
            false => claims && self.has_kernel(&device.name()),
        }
    }

    /// Whether a device that claims all sizes has a kernel for this one. Of the convolution and of the gated delta rule
    /// CUDA has kernels for these widths and heads; the others claim what they have. Of the other operations graphics
    /// cards have kernels for heads of 64 elements, CUDA also of 128.
    fn has_time_kernel(&self, device: &str) -> bool {
        let is = |name: &str| device.starts_with(name);
        // SAFETY: the node is alive. A convolution has two sources, of which the second is as long as its kernel; the
        // others have three, of which the third is as wide as the heads.
        let (op, d) = unsafe {
            let node = self.node.as_ptr();
            let op = sys::shim_tensor_op(node) as sys::ggml_op;
            let at = if op == sys::GGML_OP_SSM_CONV { 1 } else { 2 };
            (op, sys::shim_tensor_ne(sys::shim_tensor_src(node, at), 0))
        };
        match op {
            sys::GGML_OP_SSM_CONV => !is("CUDA") || [3, 4, 5, 9, 15].contains(&d),
            sys::GGML_OP_GATED_DELTA_NET => !is("CUDA") || [16, 32, 64, 128].contains(&d),
            _ if is("CUDA") => [64, 128].contains(&d),
            _ => d == 64 || !(is("Metal") || is("MTL") || is("Vulkan")),
        }
    }

    /// Whether a device that claims too much has the kernel: CUDA has capped scores only for some head sizes, Metal has
    /// flash attention only for these pairs of head sizes.
    fn has_kernel(&self, device: &str) -> bool {
        // SAFETY: the node is alive; indices are below the numbers of parameters and sources.
        let (k, softcap, v) = unsafe {
            let node = self.node.as_ptr();
            let op = sys::shim_tensor_op(node) as sys::ggml_op;
            if op != sys::GGML_OP_FLASH_ATTN_EXT || sys::shim_is_device_attention(node) {
                return true;
            }
            let k = sys::shim_tensor_ne(sys::shim_tensor_src(node, 1), 0);
            (
                k,
                sys::shim_tensor_op_param(node, 2),
                self.node.shape()[0] as i64,
            )
        };
        match device {
            _ if device.starts_with("CUDA") => softcap == 0.0 || [128, 256, 512].contains(&k),
            _ if device.starts_with("Metal") || device.starts_with("MTL") => {
                let pairs = [(96, 64), (192, 128), (320, 256), (576, 512)];
                k == v || pairs.contains(&(k, v))
            }
            _ => true,
        }
    }
}

fn is_over_time(op: sys::ggml_op) -> bool {
    const OPS: [sys::ggml_op; 5] = [
        sys::GGML_OP_SSM_CONV,
        sys::GGML_OP_GATED_DELTA_NET,
        sys::GGML_OP_RWKV_WKV6,
        sys::GGML_OP_RWKV_WKV7,
        sys::GGML_OP_GATED_LINEAR_ATTN,
    ];
    OPS.contains(&op)
}

impl Graph {
    /// The operations over time, and those that write stored rows, or read the rows that the graph writes, in
    /// the order of execution.
    pub fn kept_ops(&self) -> Vec<KeptOp> {
        let nodes = (0..self.n_nodes()).filter_map(|i| {
            // SAFETY: the index is below the number of nodes.
            let node = unsafe { sys::ggml_graph_node(self.as_ptr(), i as i32) };
            // SAFETY: the node is alive.
            let op = unsafe { sys::shim_tensor_op(node) } as sys::ggml_op;
            let is_of_time = is_over_time(op);
            let shown = if op == sys::GGML_OP_SSM_CONV { 1 } else { 0 };
            let rows = match is_of_time {
                // SAFETY: operations over time have two sources or more.
                true => unsafe {
                    self.arena()
                        .wrap("kept_ops", sys::shim_tensor_src(node, shown))
                }
                .ok()?,
                false => self.kept_rows(node)?,
            };
            let place = self.scopes().place(node as usize)?;
            // SAFETY: the node is alive, and ggml has a name for every operation.
            let op = unsafe { text(sys::ggml_op_name(op)) };
            Some(KeptOp {
                op,
                path: place.path.to_string(),
                rows: format!("{} {:?}", rows.ty(), rows.shape()),
                is_of_time,
                node: self.arena().wrap("kept_ops", node).ok()?,
            })
        });
        nodes.collect()
    }

    /// The written rows that a node is, or that it reads through views.
    fn kept_rows(&self, node: *mut sys::ggml_tensor) -> Option<Tensor> {
        // SAFETY: nodes, their sources and what these are views of are alive with the graph.
        unsafe {
            let op = |tensor| sys::shim_tensor_op(tensor) as sys::ggml_op;
            if is_view(op(node)) {
                return None;
            }
            let sources = (0..sys::shim_max_src()).map(|i| sys::shim_tensor_src(node, i));
            let found = std::iter::once(node)
                .chain(sources)
                .find_map(|mut tensor| {
                    while !tensor.is_null() && is_view(op(tensor)) {
                        tensor = sys::shim_tensor_src(tensor, 0);
                    }
                    let is_written = !tensor.is_null() && op(tensor) == sys::GGML_OP_SET_ROWS;
                    is_written.then_some(tensor)
                })?;
            self.arena().wrap("kept_ops", found).ok()
        }
    }
}
