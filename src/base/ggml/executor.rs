//! Runs graphs: backends, their threads, scratch memory, and reading of results.
//!
//! An [`Executor`] runs one graph at a time. Inputs are written and results are read through the executor, which
//! refuses tensors of other graphs. A graph keeps its places in the scratch memory when another graph is loaded, and can
//! be loaded again until that memory is replaced ([`Executor::can_reload`]). Its values are lost, and its inputs must be
//! written again.

use std::cell::Cell;
use std::collections::HashSet;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ggml_sys as sys;

use super::arena::Tensor;
use super::c_text::text;
use super::device::Device;
use super::device_inputs::DeviceInputs;
use super::error::{Error, fault};
use super::movable::MovableView;
use super::ops::{Graph, Unary};
use super::profile::Profile;
use super::rpc::{Worker, workers_of};
use super::scheduler::{Backend, Scheduler};
use super::scratch::ScratchId;
use crate::weights::TensorType;

/// Threads that are kept between graphs.
pub struct ThreadPool {
    ptr: NonNull<sys::ggml_threadpool>,
    n_threads: usize,
}

const MAX_THREADS: usize = 512;

/// Nodes that are computed before the time is looked at.
const NODES_OF_PIECE: usize = 4;

/// How long an idle thread polls for work before it sleeps, in units of 131 072 pauses of the processor: some
/// milliseconds, longer than the time between two passes of the same completion.
const POLL: u32 = 2;

impl ThreadPool {
    /// A pool of `n_threads` threads, the calling one included.
    pub fn new(n_threads: usize) -> Result<Self, Error> {
        let n_threads = n_threads.clamp(1, MAX_THREADS);
        // SAFETY: the count is in ggml's range.
        let ptr = unsafe { sys::shim_threadpool_new(n_threads as i32, POLL) };
        let ptr = NonNull::new(ptr)
            .ok_or_else(|| Error::Device(format!("could not start {n_threads} threads")))?;
        Ok(Self { ptr, n_threads })
    }

    /// Lets an idle thread sleep at once from now on, instead of polling for work for some time.
    fn sleep_when_idle(&mut self) {
        // SAFETY: the pool is alive and no graph runs: it is used by the thread that owns it.
        unsafe { sys::shim_threadpool_set_poll(self.ptr.as_ptr(), 0) };
    }

    /// Lets the threads sleep until the next graph.
    pub fn pause(&self) {
        // SAFETY: the pool is alive and no graph runs: it is used by the thread that owns it.
        unsafe { sys::ggml_threadpool_pause(self.ptr.as_ptr()) };
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: the executor frees its backends, which use the pool, before the pool.
        unsafe { sys::ggml_threadpool_free(self.ptr.as_ptr()) };
    }
}

/// What an executor did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounts {
    /// Graphs that ran.
    pub n_runs: u64,
    /// Graphs that ran again with nothing changed but the values of inputs: what a device has recorded of them stays valid.
    pub n_replayed: u64,
    /// Operations of these graphs, without views.
    pub n_ops: u64,
    /// Bytes of inputs that were written, on any device.
    pub bytes_in: u64,
    /// Bytes of results that were read from devices other than the processor.
    pub bytes_out: u64,
    /// How often the host waited for such a device: for values that pass between devices within a graph, and for results.
    pub n_waits: u64,
}

/// What is counted at each run of a graph.
#[derive(Clone, Copy, Debug, Default)]
struct RunCosts {
    n_ops: u64,
    /// Values that pass from one device to another.
    n_copies: u64,
}

/// The memory of stored rows and states that a graph reads. While this lives, it is marked as memory of weights: ggml's
/// scheduler computes an operation where the weights lie that it reads, and may copy all of any other memory to another
/// device. At other times it is not: weights do not change, which backends make use of.
struct FollowedBuffers(Vec<sys::ggml_backend_buffer_t>);

impl FollowedBuffers {
    /// Most such buffers of a graph: caches and states on each device.
    const MAX: usize = 256;

    fn of(graph: &Graph) -> Self {
        let mut buffers = vec![std::ptr::null_mut(); Self::MAX];
        // SAFETY: the graph is alive, and there is room for so many buffers.
        let n = unsafe {
            sys::shim_graph_stored(graph.as_ptr(), buffers.as_mut_ptr(), Self::MAX as i32)
        };
        buffers.truncate(n as usize);
        let own = Self(buffers);
        own.mark(sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        own
    }

    fn mark(&self, usage: sys::ggml_backend_buffer_usage) {
        for buffer in &self.0 {
            // SAFETY: the graph keeps the arenas alive that own the buffers, and outlives this value.
            unsafe { sys::ggml_backend_buffer_set_usage(*buffer, usage) };
        }
    }
}

impl Drop for FollowedBuffers {
    fn drop(&mut self) {
        self.mark(sys::GGML_BACKEND_BUFFER_USAGE_ANY);
    }
}

/// Runs graphs on a list of devices, the processor last.
///
/// Field order is drop order: graph, scheduler, inputs, backends, threads.
pub struct Executor {
    graph: Option<Graph>,
    scheduler: Scheduler,
    /// Those of each device but the processor.
    inputs: Vec<DeviceInputs>,
    backends: Vec<Rc<Backend>>,
    pub(super) devices: Vec<Device>,
    workers: Vec<Arc<Worker>>,
    threads: ThreadPool,
    capacity: usize,
    scratch: ScratchId,
    scratch_bytes: usize,
    profile: Option<Profile>,
    /// Whether plain loops compute in place of the devices.
    is_plain: bool,
    is_batch_invariant: bool,
    /// Whether devices may still compute the loaded graph.
    is_running: Cell<bool>,
    /// How often the devices were waited for.
    n_waited: Cell<u64>,
    /// Whether the loaded graph was launched since it was loaded.
    is_launched: bool,
    /// Whether devices know the loaded graph as it is: nothing of it but its inputs has changed since it ran.
    has_run: bool,
    run_costs: RunCosts,
    counts: Cell<WorkCounts>,
    n_changes: u64,
}

impl Executor {
    /// An executor whose scheduler has room for `capacity` nodes and leaves together. A larger graph makes the
    /// scheduler grow; graphs that were loaded before then lose their memory.
    pub fn new(devices: &[Device], n_threads: usize, capacity: usize) -> Result<Self, Error> {
        let cpu = Device::cpu()?;
        let mut order: Vec<Device> = devices.iter().copied().filter(|d| *d != cpu).collect();
        order.push(cpu);
        let threads = ThreadPool::new(n_threads)?;
        let mut backends = Vec::with_capacity(order.len());
        for device in &order {
            backends.push(match *device == cpu {
                true => Rc::new(Backend::new(cpu)?),
                false => Backend::shared(*device)?,
            });
        }
        let main = backends
            .last()
            .map(|b| b.0.as_ptr())
            .unwrap_or(std::ptr::null_mut());
        // SAFETY: the last backend is the processor's, alive, and so is the pool.
        unsafe {
            sys::ggml_backend_cpu_set_threadpool(main, threads.ptr.as_ptr());
            sys::shim_backend_set_n_threads(main, threads.n_threads as i32);
        }
        Ok(Self {
            graph: None,
            scheduler: Scheduler::new(&backends, capacity)?,
            inputs: order[..order.len() - 1]
                .iter()
                .copied()
                .map(DeviceInputs::new)
                .collect(),
            backends,
            workers: workers_of(&order),
            devices: order,
            threads,
            capacity,
            scratch: ScratchId::new(),
            scratch_bytes: 0,
            profile: None,
            is_plain: false,
            is_batch_invariant: false,
            is_running: Cell::new(false),
            n_waited: Cell::new(0),
            is_launched: false,
            has_run: false,
            run_costs: RunCosts::default(),
            counts: Cell::default(),
            n_changes: 0,
        })
    }

    /// What it did so far.
    pub fn counts(&self) -> WorkCounts {
        self.counts.get()
    }

    /// Differs after each load, write and launch: while it stays the same, the next launch reads what was written before.
    pub fn n_changes(&self) -> u64 {
        self.n_changes
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut WorkCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Makes the bits of a product's columns independent of the number of columns and of threads, in graphs that are
    /// loaded from now on. The types with a kernel in `ggml-sys/src/matmul` have this property without it.
    pub fn set_batch_invariant(&mut self) {
        self.is_batch_invariant = true;
    }

    /// Lets idle threads of the processor sleep at once: where other devices compute the layers, threads that poll take
    /// time from what chooses and sends tokens.
    pub fn sleep_when_idle(&mut self) {
        self.threads.sleep_when_idle();
    }

    /// Makes plain loops compute from now on (`plain`), which are slow and independent of the devices' kernels.
    ///
    /// # Errors
    /// The executor has devices other than the processor.
    pub fn compute_plainly(&mut self) -> Result<(), Error> {
        self.is_plain = self.devices.len() == 1;
        match self.is_plain {
            true => Ok(()),
            false => Err(Error::Computation(
                "plain loops compute in the host's memory alone".into(),
            )),
        }
    }

    /// The scheduler whose memory graphs share, which also measures them.
    fn sched(&self) -> sys::ggml_backend_sched_t {
        self.scheduler.as_ptr()
    }

    /// The scheduler on which a graph is allocated.
    fn sched_of(&self, graph: &Graph) -> sys::ggml_backend_sched_t {
        let own = graph.scheduler().get();
        own.map_or_else(|| self.sched(), Scheduler::as_ptr)
    }

    fn fit(&mut self, graph: &Graph) -> Result<(), Error> {
        let size = graph.size_limit();
        if size > self.capacity {
            let capacity = size.next_power_of_two();
            let scheduler = Scheduler::new(&self.backends, capacity)?;
            self.graph = None;
            self.scheduler = scheduler;
            self.capacity = capacity;
            self.scratch = ScratchId::new();
            self.scratch_bytes = 0;
        }
        self.check_places(graph)
    }

    /// Refuses a graph with operations on memory of a device that cannot compute them; one with places was checked.
    fn check_places(&self, graph: &Graph) -> Result<(), Error> {
        match self.devices.len() == 1 || graph.scratch().get().is_some() {
            true => Ok(()),
            false => self.check_kept(graph),
        }
    }

    /// Makes the scheduler large enough for a graph, and refuses a graph that can only be measured.
    fn fit_with_memory(&mut self, graph: &Graph) -> Result<(), Error> {
        self.fit(graph)?;
        match graph.arena().stands_in() {
            true => Err(Error::Computation(
                "a graph over stand-ins does not run".into(),
            )),
            false => Ok(()),
        }
    }

    /// Scratch bytes that a graph would need on each device, the processor first, without taking them. With several
    /// devices the graph cannot be used afterwards: it refers to copies of values that the next graph replaces.
    pub fn measure(&mut self, graph: Graph) -> Result<Vec<u64>, Error> {
        self.fit(&graph)?;
        self.wait();
        self.n_changes += 1;
        self.graph = None;
        self.scratch = ScratchId::new();
        let mut of_inputs = vec![0; self.backends.len()];
        for (device, inputs) in self.inputs_of(&graph) {
            of_inputs[device] = DeviceInputs::bytes(&inputs);
            let wrapped = inputs
                .iter()
                .map(|input| graph.arena().wrap("input", *input));
            let wrapped = wrapped.collect::<Result<Vec<Tensor>, Error>>()?;
            let wrapped: Vec<&Tensor> = wrapped.iter().collect();
            self.devices[device].stand_in_values(graph.arena(), &wrapped)?;
        }
        let mut sizes = vec![0usize; self.backends.len()];
        let followed = FollowedBuffers::of(&graph);
        // SAFETY: the graph fits the scheduler, `sizes` has one entry per backend.
        unsafe {
            sys::ggml_backend_sched_reserve_size(self.sched(), graph.as_ptr(), sizes.as_mut_ptr())
        };
        // SAFETY: the scheduler is alive; measuring leaves assignments that must be reset.
        unsafe { sys::ggml_backend_sched_reset(self.sched()) };
        drop(followed);
        drop(graph);
        self.check_workers()?;
        let all = sizes.iter().zip(&of_inputs);
        let mut all: Vec<u64> = all.map(|(scratch, own)| (scratch + own) as u64).collect();
        all.rotate_right(1);
        Ok(all)
    }

    /// Takes the scratch memory that a graph needs, so that smaller graphs need no more. The graph cannot be used
    /// afterwards, as with [`Self::measure`].
    pub fn reserve(&mut self, graph: Graph) -> Result<(), Error> {
        self.fit_with_memory(&graph)?;
        self.wait();
        self.n_changes += 1;
        self.graph = None;
        self.scratch = ScratchId::new();
        self.place_inputs(&graph)?;
        let followed = FollowedBuffers::of(&graph);
        // SAFETY: the graph fits the scheduler.
        let done = unsafe {
            sys::ggml_backend_sched_reset(self.sched());
            sys::ggml_backend_sched_reserve(self.sched(), graph.as_ptr())
        };
        drop(followed);
        drop(graph);
        match done {
            true => self.check_workers(),
            false => Err(self.no_scratch()),
        }
    }

    /// Has the scheduler plan the places of the next graph anew. It puts the nodes of a graph with as many nodes and leaves
    /// as the last one at the same places if these are large enough, whichever node reads which.
    fn forget_places(&self) -> Result<(), Error> {
        let blank = Graph::new(2, 0)?;
        let input = blank.input("blank", TensorType::F32, &[1])?;
        blank.expand(&blank.unary(&input, Unary::Relu)?)?;
        // SAFETY: the graph fits the scheduler, which holds no other after the reset.
        let done = unsafe {
            sys::ggml_backend_sched_reset(self.sched());
            sys::ggml_backend_sched_reserve(self.sched(), blank.as_ptr())
        };
        match done {
            true => Ok(()),
            false => Err(self.no_scratch()),
        }
    }

    /// The inputs of a graph without memory that lie on a device, by the place of the device in the list.
    fn inputs_of(&self, graph: &Graph) -> Vec<(usize, Vec<*mut sys::ggml_tensor>)> {
        if self.devices.len() == 1 || self.is_plain {
            return Vec::new();
        }
        let of_devices = graph.inputs_of_devices().into_iter();
        let in_list = of_devices.map(|(device, inputs)| (device - 1, inputs));
        in_list.filter(|(at, _)| *at < self.inputs.len()).collect()
    }

    /// Gives inputs of a new graph their places on devices. If those of earlier graphs are gone, these graphs are not loaded again.
    fn place_inputs(&mut self, graph: &Graph) -> Result<(), Error> {
        for (device, inputs) in self.inputs_of(graph) {
            if self.inputs[device].place(&inputs)? {
                self.scratch = ScratchId::new();
            }
        }
        Ok(())
    }

    fn no_scratch(&self) -> Error {
        self.check_workers().err().unwrap_or(Error::OutOfMemory {
            device: "compute".into(),
            bytes: 0,
            what: "scratch memory of a graph",
        })
    }

    /// Refuses what was computed with a worker that is lost.
    pub fn check_workers(&self) -> Result<(), Error> {
        self.workers.iter().try_for_each(|worker| worker.check())
    }

    /// Whether the tensors of a graph that was loaded earlier still have their memory.
    pub fn can_reload(&self, graph: &Graph) -> bool {
        graph.scratch().get() == Some(self.scratch)
    }

    /// Makes `graph` the loaded graph: its tensors get memory, or still have it. Returns the graph that was loaded
    /// before.
    ///
    /// # Errors
    /// There is not enough memory, or the memory of the graph is gone.
    pub fn load(&mut self, graph: Graph) -> Result<Option<Graph>, Error> {
        self.fit_with_memory(&graph)?;
        if graph.scratch().get().is_some() && !self.can_reload(&graph) {
            return Err(Error::Computation("the memory of the graph is gone".into()));
        }
        if self.is_batch_invariant && graph.scratch().get().is_none() {
            // SAFETY: the graph is alive; the call sets a parameter of its products that only `matmul` reads.
            unsafe { sys::shim_graph_set_invariant(graph.as_ptr()) };
        }
        let before = self.graph.take();
        self.n_changes += 1;
        self.is_launched = false;
        self.inputs.iter_mut().for_each(DeviceInputs::begin);
        let is_new = graph.scratch().get().is_none();
        if is_new {
            self.wait();
            self.place_inputs(&graph)?;
            if self.backends.len() == 1 {
                self.forget_places()?;
            }
        }
        let sources = if is_new {
            self.sources(&graph)
        } else {
            HashSet::new()
        };
        let followed = FollowedBuffers::of(&graph);
        let done = match self.backends.len() {
            // SAFETY: the graph fits the scheduler, which holds no other after the reset. Tensors that
            // have places already lie in the scratch memory as it is now, and keep them.
            1 => unsafe {
                sys::ggml_backend_sched_reset(self.sched());
                sys::ggml_backend_sched_alloc_graph(self.sched(), graph.as_ptr())
            },
            // The copies of values between devices belong to a scheduler, so each graph has its own.
            _ if graph.scheduler().get().is_some() => true,
            _ => {
                let own = Scheduler::new(&self.backends, graph.size_limit())?;
                // SAFETY: the new scheduler has room for the graph and is of the backends whose memory it uses. It is
                // dropped with the graph.
                let done = unsafe {
                    sys::shim_sched_alloc_graph_in(own.as_ptr(), self.sched(), graph.as_ptr())
                };
                // Nothing else sets it.
                graph.scheduler().get_or_init(|| own);
                done
            }
        };
        drop(followed);
        // SAFETY: scheduler and backends are alive.
        let bytes = |b: &Rc<Backend>| unsafe {
            sys::ggml_backend_sched_get_buffer_size(self.sched(), b.0.as_ptr())
        };
        let bytes = self.backends.iter().map(bytes).sum();
        if !done || bytes != self.scratch_bytes {
            self.scratch = ScratchId::new();
            self.scratch_bytes = bytes;
        }
        if !done {
            return Err(self.no_scratch());
        }
        graph.scratch().set(Some(self.scratch));
        // On several devices a graph keeps its scheduler, and devices what they know of it.
        self.has_run = !is_new && self.backends.len() > 1;
        if is_new {
            // The scheduler replaces a source on another device by a copy.
            let copies = self.sources(&graph);
            graph
                .n_copies
                .set(copies.difference(&sources).count() as u64);
            if let Some(own) = graph.scheduler().get() {
                // SAFETY: the graph is allocated on its scheduler.
                let elsewhere = unsafe { sys::shim_sched_inputs_read_elsewhere(own.as_ptr()) };
                graph.read_elsewhere.set(elsewhere);
            }
        }
        self.run_costs = RunCosts {
            n_ops: graph.n_ops() as u64,
            n_copies: graph.n_copies.get(),
        };
        self.graph = Some(graph);
        Ok(before)
    }

    /// Has devices look at the nodes of a graph that they know.
    pub(super) fn renew(&self, graph: &Graph) {
        // SAFETY: the graph is allocated on this scheduler.
        unsafe { sys::shim_sched_renew(self.sched_of(graph)) };
    }

    /// Moves the views of the loaded graph with this id, so that they start at row `first` of the tensors that they are
    /// views of.
    ///
    /// # Errors
    /// There is no such row, or too few after it. Views may have been moved before.
    pub fn move_views(&mut self, id: (usize, usize), first: usize) -> Result<(), Error> {
        self.n_changes += 1;
        let graph = loaded(self.graph.as_ref())?;
        let mut is_moved = false;
        let mut views = graph.movable.borrow_mut();
        // A device may not have begun with the graph as it was launched last.
        let is_ahead = graph.launched_in.get() == Some(self.n_waited.get());
        let moves = |view: &MovableView| view.has_id(id) && !view.starts_at(first);
        if is_ahead && views.iter().any(moves) {
            self.wait();
        }
        for view in views.iter_mut().filter(|view| view.has_id(id)) {
            // SAFETY: the view is one of this graph, which is complete since it is loaded.
            unsafe { view.complete(graph.as_ptr(), graph.n_nodes()) };
            is_moved |= view.move_to(first)?;
        }
        if is_moved {
            self.renew(graph);
        }
        Ok(())
    }

    /// The sources of a graph's operations, where there are several devices.
    fn sources(&self, graph: &Graph) -> HashSet<usize> {
        match self.devices.len() {
            1 => HashSet::new(),
            _ => graph.sources(),
        }
    }

    pub(super) fn backend_of(&self, node: *mut sys::ggml_tensor) -> sys::ggml_backend_t {
        let of_graph = self.graph.as_ref().map(|graph| self.sched_of(graph));
        let scheduler = of_graph.unwrap_or_else(|| self.sched());
        // SAFETY: the scheduler is alive; of a node that it does not know it answers null.
        unsafe { sys::ggml_backend_sched_get_tensor_backend(scheduler, node) }
    }

    /// The backend of the device at a place of the list of devices; the processor is the last one.
    pub(super) fn backend(&self, at: usize) -> sys::ggml_backend_t {
        let backend = self.backends.get(at);
        backend.map_or(std::ptr::null_mut(), |backend| backend.0.as_ptr())
    }

    pub fn graph(&self) -> Option<&Graph> {
        self.graph.as_ref()
    }

    /// Computes the loaded graph.
    pub fn run(&mut self) -> Result<(), Error> {
        self.launch()?;
        self.wait();
        self.check_workers()
    }

    /// Begins to compute the loaded graph. On the processor it is computed when this returns; other devices may go on until the next
    /// call that reads or waits. Other graphs that are loaded again may be launched before that: a device computes them in turn.
    pub fn launch(&mut self) -> Result<(), Error> {
        let graph = loaded(self.graph.as_ref())?;
        if self.is_plain {
            self.n_changes += 1;
            return super::plain::run(graph);
        }
        let elsewhere = graph.read_elsewhere.get();
        self.send_inputs(None);
        for at in (0..self.inputs.len()).filter(|at| elsewhere >> at & 1 == 1) {
            // SAFETY: the backend is alive.
            unsafe { sys::ggml_backend_synchronize(self.backends[at].0.as_ptr()) };
            self.count(|counts| counts.n_waits += 1);
        }
        self.begin()
    }

    /// Whether the loaded graph was launched since it was loaded: its results are there, or come.
    pub(super) fn has_results(&self) -> bool {
        self.is_launched
    }

    /// Begins to copy what was written to the devices, but for an input that is `left_out`.
    pub(super) fn send_inputs(&mut self, left_out: Option<&Tensor>) {
        for (inputs, backend) in self.inputs.iter_mut().zip(&self.backends) {
            inputs.send(backend, left_out);
        }
    }

    /// Begins to compute the loaded graph, whose inputs are sent.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        self.n_changes += 1;
        self.is_launched = true;
        let graph = loaded(self.graph.as_ref())?;
        let scheduler = self.sched_of(graph);
        self.is_running.set(self.devices.len() > 1);
        graph.launched_in.set(Some(self.n_waited.get()));
        // SAFETY: the graph is allocated on this scheduler (`load`).
        let status = unsafe {
            match &mut self.profile {
                None => sys::ggml_backend_sched_graph_compute_async(scheduler, graph.as_ptr()),
                Some(profile) => profile.run(scheduler, graph),
            }
        };
        let (costs, has_run) = (self.run_costs, std::mem::replace(&mut self.has_run, true));
        self.count(|counts| {
            counts.n_runs += 1;
            counts.n_replayed += u64::from(has_run);
            counts.n_ops += costs.n_ops;
            counts.n_waits += costs.n_copies;
        });
        checked(status)
    }

    /// Waits until the devices have computed what was launched.
    pub fn wait(&self) {
        if !self.is_running.replace(false) {
            return;
        }
        self.n_waited.set(self.n_waited.get() + 1);
        self.count(|counts| counts.n_waits += 1);
        for backend in &self.backends[..self.inputs.len()] {
            // SAFETY: the backend is alive.
            unsafe { sys::ggml_backend_synchronize(backend.0.as_ptr()) };
        }
    }

    fn is_on_processor(&self, tensor: &Tensor) -> bool {
        let cpu = self.backends.last().map(|backend| backend.0.as_ptr());
        cpu == Some(self.backend_of(tensor.as_ptr()))
    }

    pub(super) fn is_processor(&self, backend: &Rc<Backend>) -> bool {
        self.backends
            .last()
            .is_some_and(|last| Rc::ptr_eq(last, backend))
    }

    /// The backend in whose memory a tensor of the loaded graph lies.
    pub(super) fn holder_of(&self, tensor: &Tensor) -> Option<&Rc<Backend>> {
        let holder = self.backend_of(tensor.as_ptr());
        let mut backends = self.backends.iter();
        backends.find(|backend| backend.0.as_ptr() == holder)
    }

    /// The backend of one of its devices.
    pub(super) fn backend_of_device(&self, device: Device) -> Option<sys::ggml_backend_t> {
        let at = self.devices.iter().position(|of| *of == device)?;
        Some(self.backend(at))
    }

    /// Whether a tensor is one of the inputs that are sent to a backend together.
    pub(super) fn is_input_of(&self, backend: &Rc<Backend>, tensor: &Tensor) -> bool {
        let mut inputs = self.inputs.iter().zip(&self.backends);
        inputs.any(|(inputs, of)| Rc::ptr_eq(of, backend) && inputs.holds(tensor))
    }

    /// Notes that the device on which the last graph ended was waited for.
    pub(super) fn has_waited(&self) {
        match self.inputs.len() {
            // It was the only one that computed.
            1 => self.is_running.set(false),
            // What the results were made of was computed before them on the others.
            _ => self.wait(),
        }
    }

    /// Waits before bytes of a tensor are read, and counts them.
    fn wait_for(&self, tensor: &Tensor, bytes: usize) {
        self.wait();
        if !self.is_on_processor(tensor) {
            self.count(|counts| {
                counts.n_waits += 1;
                counts.bytes_out += bytes as u64;
            });
        }
    }

    /// Whether graphs can be launched while devices compute others. A worker tells of its loss when it is waited for.
    pub fn runs_ahead(&self) -> bool {
        self.devices.len() > 1 && self.workers.is_empty() && !self.is_plain
    }

    /// Computes nodes of the loaded graph, from a node on, until a time is over. Returns the node after the computed ones; none
    /// if all are computed. A graph of several devices, of plain loops or with a profile is computed as a whole.
    pub fn run_until(&mut self, from: usize, end: Option<Instant>) -> Result<Option<usize>, Error> {
        let n_nodes = loaded(self.graph.as_ref())?.n_nodes();
        if self.is_plain || self.profile.is_some() || self.devices.len() > 1 {
            return self.run().map(|()| None);
        }
        let graph = loaded(self.graph.as_ref())?.as_ptr();
        let mut at = from;
        while at < n_nodes {
            let mut to = (at + NODES_OF_PIECE).min(n_nodes);
            // SAFETY: the graph is allocated on the scheduler, whose only backend is the processor's, and has these nodes.
            let status = unsafe {
                // ggml computes such a node together with the next one.
                let is_fused = |at: usize| {
                    let node = sys::ggml_graph_node(graph, at as i32);
                    sys::shim_tensor_op(node) as sys::ggml_op == sys::GGML_OP_RMS_NORM
                };
                while to < n_nodes && is_fused(to - 1) {
                    to += 1;
                }
                sys::shim_graph_compute_range(self.backend(0), graph, at as i32, to as i32)
            };
            checked(status)?;
            at = to;
            if at < n_nodes && end.is_some_and(|end| Instant::now() >= end) {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The workers whose devices compute.
    pub fn workers(&self) -> &[Arc<Worker>] {
        &self.workers
    }

    /// Sets the profile that times every operation, and returns the previous one. While there is one, a single thread
    /// computes.
    pub fn set_profile(&mut self, profile: Option<Profile>) -> Option<Profile> {
        let n_threads = match &profile {
            Some(_) => 1,
            None => self.threads.n_threads,
        };
        if let Some(main) = self.backends.last() {
            // SAFETY: the last backend is the processor's and alive; its pool has at least this many threads.
            unsafe { sys::shim_backend_set_n_threads(main.0.as_ptr(), n_threads as i32) };
        }
        std::mem::replace(&mut self.profile, profile)
    }

    /// Lets the threads sleep until the next graph.
    pub fn rest(&self) {
        self.threads.pause();
    }

    pub(super) fn check(
        &self,
        op: &'static str,
        tensor: &Tensor,
        len: usize,
        size: usize,
    ) -> Result<(), Error> {
        let fault = |message: String| Error::Arguments { op, message };
        let loaded = self
            .graph
            .as_ref()
            .is_some_and(|g| Rc::ptr_eq(&g.arena().0, &tensor.arena.0));
        if !loaded {
            return Err(fault(format!(
                "`{}` does not belong to the loaded graph",
                tensor.name()
            )));
        }
        if !tensor.is_allocated() {
            return Err(fault(format!(
                "`{}` is not part of the computation",
                tensor.name()
            )));
        }
        if !tensor.is_contiguous() || len.checked_mul(size) != Some(tensor.bytes()) {
            let message = format!(
                "`{}` has {} bytes, found {len} of {size}",
                tensor.name(),
                tensor.bytes()
            );
            return Err(fault(message));
        }
        Ok(())
    }

    /// Writes plain values into an input of the loaded graph.
    ///
    /// # Errors
    /// The tensor belongs to another graph, has another size, or is an index tensor (see the functions below).
    pub fn write<T: bytemuck::Pod>(&mut self, tensor: &Tensor, values: &[T]) -> Result<(), Error> {
        if tensor.arena.0.bounds.borrow().contains_key(&tensor.key()) {
            return fault(
                "write",
                format!(
                    "`{}` holds indices, which are checked when written",
                    tensor.name()
                ),
            );
        }
        self.write_raw(tensor, values)
    }

    fn write_raw<T: bytemuck::Pod>(&mut self, tensor: &Tensor, values: &[T]) -> Result<(), Error> {
        self.check("write", tensor, values.len(), size_of::<T>())?;
        self.n_changes += 1;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.count(|counts| counts.bytes_in += bytes.len() as u64);
        let mut inputs = self.inputs.iter_mut().zip(&self.backends);
        if inputs.any(|(inputs, backend)| inputs.write(backend, tensor, bytes)) {
            return Ok(());
        }
        // The host's memory is read before a launch returns.
        if !self.is_on_processor(tensor) {
            self.wait();
        }
        // SAFETY: the tensor belongs to the loaded graph and has memory for exactly these bytes.
        unsafe {
            sys::ggml_backend_tensor_set(tensor.as_ptr(), bytes.as_ptr().cast(), 0, bytes.len())
        };
        self.check_workers()
    }

    /// Writes an index tensor. All values must be below its bound, otherwise nothing is written.
    ///
    /// # Errors
    /// The errors of [`Self::write`], or an index is out of bounds.
    pub fn write_indices<T>(&mut self, tensor: &Tensor, values: &[T]) -> Result<(), Error>
    where
        T: bytemuck::Pod + TryInto<u64> + std::fmt::Display,
    {
        let bound = tensor
            .arena
            .0
            .bounds
            .borrow()
            .get(&tensor.key())
            .copied()
            .unwrap_or(0);
        for value in values {
            if (*value).try_into().ok().is_none_or(|index| index >= bound) {
                return fault(
                    "write",
                    format!(
                        "`{}`: the index {value} is not below {bound}",
                        tensor.name()
                    ),
                );
            }
        }
        if size_of::<T>() as u64 != tensor.ty().block_bytes() {
            return fault(
                "write",
                format!("`{}` holds {} indices", tensor.name(), tensor.ty()),
            );
        }
        self.write_raw(tensor, values)
    }

    /// Reads a result of the loaded graph. The values are those of the last [`Self::run`].
    ///
    /// # Errors
    /// The tensor belongs to another graph or has another size, or a worker is lost.
    pub fn read<T: bytemuck::Pod>(&self, tensor: &Tensor, values: &mut [T]) -> Result<(), Error> {
        self.check("read", tensor, values.len(), size_of::<T>())?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        self.wait_for(tensor, bytes.len());
        // SAFETY: the tensor belongs to the loaded graph and holds exactly these bytes.
        unsafe {
            sys::ggml_backend_tensor_get(tensor.as_ptr(), bytes.as_mut_ptr().cast(), 0, bytes.len())
        };
        self.check_workers()
    }

    /// [`Self::read`] of row `at` alone, whose width is that of `row`.
    ///
    /// # Errors
    /// The errors of [`Self::read`], or there is no such row.
    pub fn read_row(&self, tensor: &Tensor, at: usize, row: &mut [f32]) -> Result<(), Error> {
        let width = row.len().max(1);
        let n_rows = tensor.elements() as usize / width;
        self.check("read", tensor, n_rows * width, size_of::<f32>())?;
        if at >= n_rows {
            return fault("read", format!("`{}`: there is no row {at}", tensor.name()));
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(row);
        self.wait_for(tensor, bytes.len());
        // SAFETY: the tensor belongs to the loaded graph, and has this row.
        unsafe {
            let (to, offset) = (bytes.as_mut_ptr().cast(), at * bytes.len());
            sys::ggml_backend_tensor_get(tensor.as_ptr(), to, offset, bytes.len());
        }
        self.check_workers()
    }

    /// The values of a result of the loaded graph where they lie; none if that is not the host's memory.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub fn read_in_place(&self, tensor: &Tensor) -> Result<Option<&[f32]>, Error> {
        self.check("read", tensor, tensor.elements() as usize, size_of::<f32>())?;
        if !self.is_on_processor(tensor) {
            return Ok(None);
        }
        self.wait();
        // SAFETY: the processor's values lie in the host's memory, as many as were checked, and are written by the next run
        // alone, which needs the executor for itself.
        let values = unsafe {
            let first = sys::shim_tensor_data(tensor.as_ptr()).cast::<f32>();
            std::slice::from_raw_parts(first, tensor.elements() as usize)
        };
        Ok(Some(values))
    }

    /// [`Self::read`] of the first rows of `width` elements: row `i` becomes row `places[i]` of `rows`.
    ///
    /// # Errors
    /// The errors of [`Self::read`], there are fewer rows, or a place is beyond the end.
    pub fn read_rows(
        &self,
        tensor: &Tensor,
        (places, width): (&[usize], usize),
        rows: &mut [f32],
    ) -> Result<(), Error> {
        let n = (tensor.elements() as usize).max(places.len() * width);
        self.check("read", tensor, n, size_of::<f32>())?;
        self.wait_for(tensor, places.len() * width * size_of::<f32>());
        let mut first = 0;
        for run in places.chunk_by(|a, b| a + 1 == *b) {
            let to = run[0] * width..(run[0] + run.len()) * width;
            let Some(to) = rows.get_mut(to) else {
                return fault(
                    "read",
                    format!("`{}`: there is no row {}", tensor.name(), run[0]),
                );
            };
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(to);
            let offset = first * width * size_of::<f32>();
            // SAFETY: the tensor belongs to the loaded graph, and holds at least as many rows of this width as there are places.
            unsafe {
                let to = bytes.as_mut_ptr().cast();
                sys::ggml_backend_tensor_get(tensor.as_ptr(), to, offset, bytes.len());
            }
            first += run.len();
        }
        self.check_workers()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.wait();
    }
}

fn loaded(graph: Option<&Graph>) -> Result<&Graph, Error> {
    graph.ok_or_else(|| Error::Computation("no graph is loaded".into()))
}

fn checked(status: sys::ggml_status) -> Result<(), Error> {
    if status == sys::GGML_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: ggml has a static text for every status.
    Err(Error::Computation(unsafe {
        text(sys::ggml_status_to_string(status))
    }))
}
