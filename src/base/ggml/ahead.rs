//! Graphs that are launched before the results of the one before are read: the device copies these to host memory, and one of
//! them to an input, in the order of what it computes.

use std::rc::Rc;

use ggml_sys as sys;

use super::arena::Tensor;
use super::device::Device;
use super::error::{Error, fault};
use super::executor::Executor;
use super::host::HostNumbers;
use super::ops::Graph;
use super::scheduler::{Backend, Event};

/// Results that devices copy to host memory while the host goes on.
pub struct Readback {
    device: Device,
    numbers: HostNumbers,
    /// Where the copies end; none if the device has no events. Recorded for pinned memory alone.
    end: Option<Event>,
    /// Whether that was recorded for the present copies.
    is_recorded: bool,
    /// The backends that copy until they are waited for.
    begun: Vec<Rc<Backend>>,
    /// Number of graphs that ran when the copies began.
    n_runs: u64,
}

impl Readback {
    /// Of results on a device.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            numbers: HostNumbers::new(device),
            end: Event::new(device),
            is_recorded: false,
            begun: Vec::new(),
            n_runs: 0,
        }
    }

    /// The numbers that were read last; none while they are copied.
    pub fn numbers(&self) -> &[f32] {
        match self.begun.is_empty() {
            true => &self.numbers,
            false => &[],
        }
    }

    /// Whether what is launched after the copies that were begun need not be waited for.
    pub fn ends_alone(&self) -> bool {
        self.is_recorded
    }

    /// Whether nothing was launched since the copies began: what was not read is still there.
    pub fn is_last(&self, executor: &Executor) -> bool {
        self.n_runs == executor.counts().n_runs
    }

    fn wait(&mut self) {
        for backend in std::mem::take(&mut self.begun) {
            match &self.end {
                Some(end) if self.is_recorded => end.wait(),
                // SAFETY: the backend is alive.
                _ => unsafe { sys::ggml_backend_synchronize(backend.0.as_ptr()) },
            }
        }
    }
}

impl Drop for Readback {
    fn drop(&mut self) {
        self.wait();
    }
}

impl Executor {
    /// Begins to read results of 4 bytes an element, one after another, and those of the last launch. What is launched after this
    /// does not change them.
    ///
    /// # Errors
    /// A tensor belongs to another graph, or there is no memory.
    pub fn begin_read<'t>(
        &self,
        to: &mut Readback,
        tensors: impl Iterator<Item = &'t Tensor> + Clone,
    ) -> Result<(), Error> {
        to.wait();
        let n: u64 = tensors.clone().map(Tensor::elements).sum();
        for tensor in tensors.clone() {
            self.check("read", tensor, tensor.elements() as usize, size_of::<f32>())?;
        }
        to.numbers.resize(n as usize)?;
        let mut rest: &mut [f32] = &mut to.numbers;
        for tensor in tensors {
            let (own, after) = rest.split_at_mut(tensor.elements() as usize);
            rest = after;
            let Some(backend) = self.holder_of(tensor) else {
                return fault("read", format!("`{}` lies nowhere", tensor.name()));
            };
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(own);
            self.count(|counts| counts.bytes_out += bytes.len() as u64);
            if !to.begun.iter().any(|begun| Rc::ptr_eq(begun, backend)) {
                to.begun.push(Rc::clone(backend));
            }
            // SAFETY: the tensor belongs to the loaded graph, was computed by this backend and holds exactly these bytes. They are
            // neither read, written nor freed before the backend has been waited for (`Readback::wait`).
            unsafe {
                let to = bytes.as_mut_ptr().cast();
                let from = tensor.as_ptr();
                sys::ggml_backend_tensor_get_async(backend.0.as_ptr(), from, to, 0, bytes.len());
            }
        }
        to.is_recorded = false;
        to.n_runs = self.counts().n_runs;
        // Copies to other memory may go through memory of the backend, which ends them when all of it is waited for.
        if let (Some(end), [backend]) = (&to.end, to.begun.as_slice())
            && self.backend_of_device(to.device) == Some(backend.0.as_ptr())
            && to.numbers.are_pinned()
        {
            end.record(backend);
            to.is_recorded = true;
        }
        Ok(())
    }

    /// Waits for the results whose reading has begun, not for what was launched since then.
    ///
    /// # Errors
    /// A worker is lost.
    pub fn end_read(&self, of: &mut Readback) -> Result<(), Error> {
        let is_last = of.is_last(self);
        of.is_recorded &= !is_last;
        for backend in &of.begun {
            let is_elsewhere = !self.is_processor(backend);
            self.count(|counts| counts.n_waits += u64::from(is_elsewhere));
        }
        of.wait();
        if is_last {
            self.has_waited();
        }
        self.check_workers()
    }

    /// Whether [`Self::launch_fed`] can copy a result of the loaded graph to one of its inputs.
    pub fn feeds(&self, from: &Tensor, to: &Tensor) -> bool {
        let Some(backend) = self.holder_of(from) else {
            return false;
        };
        let bound = |of: &Tensor| of.arena.0.bounds.borrow().get(&of.key()).copied();
        let fits = |(from, to): (u64, u64)| from <= to;
        let is_alike = from.ty() == to.ty() && from.shape() == to.shape();
        // SAFETY: the backend is alive.
        let copies = || unsafe { sys::shim_backend_copies_async(backend.0.as_ptr()) };
        let is_read_here = |graph: &Graph| graph.read_elsewhere.get() == 0;
        self.runs_ahead()
            && self.graph().is_some_and(is_read_here)
            && [from, to].iter().all(|of| {
                let n = of.elements() as usize * of.ty().block_bytes() as usize;
                self.check("feed", of, n, 1).is_ok()
            })
            && is_alike
            && bound(from).zip(bound(to)).is_some_and(fits)
            && self.is_input_of(backend, to)
            && copies()
    }

    /// Begins to compute the loaded graph once more, after a copy of one of its results of the last launch to one of its inputs.
    ///
    /// # Errors
    /// [`Self::feeds`] is false, or the loaded graph was not launched.
    pub fn launch_fed(&mut self, from: &Tensor, to: &Tensor) -> Result<(), Error> {
        if !self.feeds(from, to) || !self.has_results() {
            return fault("feed", format!("`{}` from `{}`", to.name(), from.name()));
        }
        self.send_inputs(Some(to));
        let Some(backend) = self.holder_of(from) else {
            return fault("feed", format!("`{}` lies nowhere", from.name()));
        };
        // SAFETY: both tensors lie in memory of the backend and have the same type and shape; the values are below the bound of the
        // input (`feeds`), and the copy comes after what made them.
        unsafe {
            let backend = backend.0.as_ptr();
            sys::ggml_backend_tensor_copy_async(backend, backend, from.as_ptr(), to.as_ptr());
        }
        self.begin()
    }
}
