//! Devices that compute, and the buffers of their memory.

use std::ptr::NonNull;
use std::sync::Mutex;

use ggml_sys as sys;

use super::arena::{Arena, Tensor};
use super::buffer::Buffer;
use super::c_text::text;
use super::error::{Error, fault};
use super::interleave::{InterleavedRows, RowsInFile};
use crate::util::lock::lock;
use crate::weights::{FileBytes, TensorType};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// A graphics processor with its own memory.
    Gpu,
    /// A graphics processor that uses the host's memory.
    IntegratedGpu,
    /// A library that speeds up the processor.
    Accelerator,
}

/// A device of ggml's registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device(pub(super) NonNull<sys::ggml_backend_device>);

/// Environment variable: `1` has devices read block tables.
const TABLES_VARIABLE: &str = "BENCH_DEVICE_TABLES";

/// Held while ggml's registry is read or added to: it is a list that moves when it grows.
static REGISTRY: Mutex<()> = Mutex::new(());

/// All devices, in the order of the registry.
pub fn devices() -> Vec<Device> {
    let _held = lock(&REGISTRY);
    // The first access to the registry starts the built-in backends, which log the devices that they find.
    super::log::install();
    // SAFETY: the registry hands out devices that live as long as the program, for indices below
    // the count.
    unsafe {
        (0..sys::ggml_backend_dev_count())
            .filter_map(|i| NonNull::new(sys::ggml_backend_dev_get(i)).map(Device))
            .collect()
    }
}

/// Adds a backend's devices to the registry.
///
/// # Safety
/// The entry is one of these sources of ggml, lives as long as the program, and is not in the registry.
pub(super) unsafe fn register(reg: sys::ggml_backend_reg_t) {
    let _held = lock(&REGISTRY);
    // SAFETY: as the caller promises; nobody else uses the registry.
    unsafe { sys::ggml_backend_register(reg) };
}

/// Alignment in bytes of an element, or of a block of elements. Blocks consist of 16-bit numbers and smaller parts.
fn element_align(ty: TensorType) -> usize {
    match ty.block_len() {
        1 => ty.row_bytes(1).map_or(8, |bytes| bytes as usize),
        _ => 4,
    }
}

/// The device of a tensor's memory, if the host does not address the memory.
pub(super) fn of_tensor(tensor: &Tensor) -> Result<Option<Device>, Error> {
    // SAFETY: the tensor has memory, so it has a buffer, whose type and device live as long as the program.
    let device = unsafe {
        if sys::shim_tensor_in_host_memory(tensor.as_ptr()) {
            return Ok(None);
        }
        let ty = sys::ggml_backend_buffer_get_type(sys::shim_tensor_buffer(tensor.as_ptr()));
        sys::ggml_backend_buft_get_device(ty)
    };
    let found = NonNull::new(device).map(|device| Some(Device(device)));
    found.ok_or_else(|| Error::Device(format!("the memory of `{}` is of no device", tensor.name())))
}

impl Device {
    pub(super) fn as_ptr(self) -> sys::ggml_backend_dev_t {
        self.0.as_ptr()
    }

    pub fn named(name: &str) -> Result<Self, Error> {
        let all = devices();
        let found = all.iter().find(|device| device.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<String> = all.into_iter().map(Self::name).collect();
            Error::Device(format!(
                "there is no device `{name}`; found {}",
                names.join(", ")
            ))
        })
    }

    pub fn cpu() -> Result<Self, Error> {
        devices()
            .into_iter()
            .find(|device| device.kind() == DeviceKind::Cpu)
            .ok_or_else(|| Error::Device("ggml has no processor backend".into()))
    }

    /// Name of the device in the registry.
    pub fn name(self) -> String {
        // SAFETY: registered devices have a static name.
        unsafe { text(sys::ggml_backend_dev_name(self.as_ptr())) }
    }

    /// Whether attention on the device may read block tables, which backends of ggml itself ignore; whether it can for a
    /// model, the device says of its operation. The kernels of this project for it have not run on a GPU, so they are
    /// used only where `BENCH_DEVICE_TABLES` is `1`.
    pub fn may_read_block_tables(self) -> bool {
        let is_on = std::env::var_os(TABLES_VARIABLE).is_some_and(|value| value == "1");
        is_on && super::library::reads_tables(&self.backend_name())
    }

    /// Name of the device's backend.
    pub fn backend_name(self) -> String {
        // SAFETY: registered devices have an entry of a backend, which has a name.
        unsafe {
            let reg = sys::ggml_backend_dev_backend_reg(self.as_ptr());
            text(sys::ggml_backend_reg_name(reg))
        }
    }

    /// Bytes that the libraries of the device take while they compute, besides what graphs are measured to need. `most` is the number
    /// of elements of the largest matrix of weights.
    ///
    /// CUDA's pool holds a matrix in half precision where its product is made by cuBLAS, which has a workspace; recorded graphs
    /// take some memory too.
    pub fn temporary_bytes(self, most: u64) -> u64 {
        const WORKSPACES: u64 = 96 << 20;
        match self.backend_name().as_str() {
            "CUDA" => most.saturating_mul(2).saturating_add(WORKSPACES),
            _ => 0,
        }
    }

    /// The description by ggml; for a device of a worker, the address to which ggml is connected.
    pub(super) fn endpoint(self) -> String {
        // SAFETY: as in `name`.
        unsafe { text(sys::ggml_backend_dev_description(self.as_ptr())) }
    }

    pub fn kind(self) -> DeviceKind {
        // SAFETY: the device lives as long as the program.
        match unsafe { sys::ggml_backend_dev_type(self.as_ptr()) } {
            sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
            sys::GGML_BACKEND_DEVICE_TYPE_GPU => DeviceKind::Gpu,
            sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::IntegratedGpu,
            _ => DeviceKind::Accelerator,
        }
    }

    /// Free and total memory in bytes, as the device reports it.
    pub fn memory(self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for writing.
        unsafe { sys::ggml_backend_dev_memory(self.as_ptr(), &raw mut free, &raw mut total) };
        (free, total)
    }

    /// Bytes that can be allocated; `None` where the device does not state it.
    pub fn free_memory(self) -> Option<u64> {
        let (free, total) = self.memory();
        (total > 0).then_some(free as u64)
    }

    pub(super) fn buffer_type(self) -> sys::ggml_backend_buffer_type_t {
        // SAFETY: every device has a default buffer type that lives as long as the program.
        unsafe { sys::ggml_backend_dev_buffer_type(self.as_ptr()) }
    }

    /// Bytes that [`Self::allocate`] would take for those tensors of an arena that have no memory yet.
    pub fn bytes_for(self, arena: &Arena) -> u64 {
        // SAFETY: the context and the buffer type are alive; sizes are computed, no memory is taken.
        let bytes = unsafe {
            sys::ggml_backend_alloc_ctx_tensors_from_buft_size(
                arena.0.ctx.as_ptr(),
                self.buffer_type(),
            )
        };
        bytes as u64
    }

    /// Gives every tensor of an arena that has no memory yet memory on this device, zeroed. Where the system allows it,
    /// memory becomes resident when it is first used. Operations on the memory run on this device; operations on memory
    /// of the processor may run on other devices.
    pub fn allocate(self, arena: &Arena, what: &'static str) -> Result<usize, Error> {
        self.take(arena, what, sys::GGML_BACKEND_BUFFER_USAGE_ANY)
    }

    /// [`Self::allocate`] for weights: operations on them run on this device.
    pub fn allocate_weights(self, arena: &Arena) -> Result<usize, Error> {
        self.take(arena, "weights", sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
    }

    /// [`Self::allocate`] for values that graphs read or write, wherever their operations run.
    pub(super) fn allocate_values(self, arena: &Arena, what: &'static str) -> Result<usize, Error> {
        self.take(arena, what, sys::GGML_BACKEND_BUFFER_USAGE_ANY)
    }

    fn take(
        self,
        arena: &Arena,
        what: &'static str,
        usage: sys::ggml_backend_buffer_usage,
    ) -> Result<usize, Error> {
        // SAFETY: the context and the buffer type are alive; ggml skips tensors that have memory.
        let ptr = unsafe {
            sys::ggml_backend_alloc_ctx_tensors_from_buft(arena.0.ctx.as_ptr(), self.buffer_type())
        };
        let buffer = NonNull::new(ptr).map(Buffer);
        self.check()?;
        let Some(buffer) = buffer else {
            let device = self.name();
            return Err(Error::OutOfMemory {
                device,
                bytes: 0,
                what,
            });
        };
        let bytes = buffer.bytes();
        // SAFETY: the buffer was just made.
        unsafe {
            sys::ggml_backend_buffer_set_usage(buffer.0.as_ptr(), usage);
            sys::shim_buffer_zero(buffer.0.as_ptr());
        }
        arena.own(buffer, None);
        Ok(bytes)
    }

    /// Whether the device can use memory of the host in place.
    pub fn takes_host_memory(self) -> bool {
        // SAFETY: the device lives as long as the program.
        unsafe { sys::shim_device_takes_host_ptr(self.as_ptr()) }
    }

    /// Lets tensors use host memory in place. `places` are tensors and offsets in `host`. Returns the tensors that the
    /// device cannot use at their places: they need a copy. The processor's kernels load vectors from any address, and
    /// folders align data to 8 bytes only, so the processor requires only the alignment of the element type. Other
    /// devices require their own alignment.
    ///
    /// # Errors
    /// A tensor reaches beyond the memory or has memory already, the device takes no host memory, or ggml refuses.
    pub fn adopt<'t>(
        self,
        arena: &Arena,
        host: &FileBytes,
        places: &[(&'t Tensor, usize)],
    ) -> Result<Vec<&'t Tensor>, Error> {
        let fault = |message: String| Error::Arguments {
            op: "adopt",
            message,
        };
        if !self.takes_host_memory() {
            return Err(fault(format!("{} does not take host memory", self.name())));
        }
        // SAFETY: the buffer type lives as long as the program.
        let align = unsafe { sys::ggml_backend_buft_get_alignment(self.buffer_type()) };
        let base = host.as_ptr();
        // The device gets the range from the first of the tensors to the end of the last one.
        let least = places.iter().map(|(_, offset)| *offset).min().unwrap_or(0);
        let ends = places
            .iter()
            .map(|(tensor, offset)| offset.saturating_add(tensor.bytes()));
        let end = ends.max().unwrap_or(0).min(host.len());
        let aligned = base.align_offset(align);
        let first = aligned.saturating_add(least.saturating_sub(aligned) / align * align);
        if first >= end {
            return Ok(places.iter().map(|(tensor, _)| *tensor).collect());
        }
        let largest = places.iter().map(|(tensor, _)| tensor.bytes()).max();
        // SAFETY: the range lies inside `host`, which the arena keeps alive alongside the buffer. It
        // is mapped read-only or static: tensors adopted here are weights, which no operation
        // writes to (`Graph` refuses to write rows into them).
        let ptr = unsafe {
            sys::ggml_backend_dev_buffer_from_host_ptr(
                self.as_ptr(),
                base.add(first).cast_mut().cast(),
                end - first,
                largest.unwrap_or(0),
            )
        };
        let Some(buffer) = NonNull::new(ptr) else {
            return Err(fault("ggml refused the memory".into()));
        };
        let buffer = Buffer(buffer);
        // SAFETY: the buffer was just made.
        unsafe {
            let usage = sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
            sys::ggml_backend_buffer_set_usage(buffer.0.as_ptr(), usage);
        }
        let mut unaligned = Vec::new();
        for &(tensor, offset) in places {
            if tensor.is_allocated() {
                return Err(fault(format!("`{}` has memory already", tensor.name())));
            }
            if offset
                .checked_add(tensor.bytes())
                .is_none_or(|end| end > host.len())
            {
                return Err(fault(format!(
                    "`{}` reaches beyond the file",
                    tensor.name()
                )));
            }
            let address = base.wrapping_add(offset);
            let of_element = match self.kind() {
                DeviceKind::Cpu => element_align(tensor.ty()),
                _ => align,
            };
            // SAFETY: the buffer type lives as long as the program, the tensor as its handle.
            let padded = unsafe {
                sys::ggml_backend_buft_get_alloc_size(self.buffer_type(), tensor.as_ptr())
            };
            let is_inside = offset >= first && offset.saturating_add(padded) <= end;
            if !is_inside || address.align_offset(of_element) != 0 {
                unaligned.push(tensor);
                continue;
            }
            // SAFETY: the address and the tensor's bytes lie inside the buffer (checked above), and
            // the tensor has no memory yet.
            let status = unsafe {
                sys::ggml_backend_tensor_alloc(
                    buffer.0.as_ptr(),
                    tensor.as_ptr(),
                    address.cast_mut().cast(),
                )
            };
            if status != sys::GGML_STATUS_SUCCESS {
                return Err(fault(format!(
                    "`{}`: ggml answered {status}",
                    tensor.name()
                )));
            }
        }
        arena.own(buffer, Some(host.clone()));
        Ok(unaligned)
    }

    /// Gives every tensor of an arena a place without memory, so that a graph over the tensors can be measured. The
    /// executor refuses to run such a graph.
    pub fn stand_in(self, arena: &Arena, tensors: &[&Tensor]) -> Result<(), Error> {
        self.stand_in_for(arena, tensors, sys::GGML_BACKEND_BUFFER_USAGE_ANY)
    }

    /// [`Self::stand_in`] for weights, the counterpart of [`Self::allocate_weights`].
    pub fn stand_in_weights(self, arena: &Arena, tensors: &[&Tensor]) -> Result<(), Error> {
        self.stand_in_for(arena, tensors, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
    }

    /// [`Self::stand_in`] for the inputs of a graph, the counterpart of [`Self::allocate_values`].
    pub(super) fn stand_in_values(self, arena: &Arena, tensors: &[&Tensor]) -> Result<(), Error> {
        self.stand_in_for(arena, tensors, sys::GGML_BACKEND_BUFFER_USAGE_ANY)
    }

    fn stand_in_for(
        self,
        arena: &Arena,
        tensors: &[&Tensor],
        usage: sys::ggml_backend_buffer_usage,
    ) -> Result<(), Error> {
        let Some(largest) = tensors.iter().map(|tensor| tensor.bytes()).max() else {
            return Ok(());
        };
        if self.kind() != DeviceKind::Cpu {
            return self.stand_in_elsewhere(arena, tensors, usage);
        }
        // SAFETY: the buffer type lives as long as the program.
        let align = unsafe { sys::ggml_backend_buft_get_alignment(self.buffer_type()) };
        let nowhere = std::ptr::without_provenance_mut::<std::ffi::c_void>(align);
        // SAFETY: ggml notes the range and does not touch it; the mark on the arena keeps graphs over it
        // from running and its tensors from being read and written.
        let ptr = unsafe { sys::ggml_backend_cpu_buffer_from_ptr(nowhere, largest.max(1)) };
        let buffer = NonNull::new(ptr)
            .map(Buffer)
            .ok_or_else(|| Error::Arguments {
                op: "stand_in",
                message: "ggml refused the place".into(),
            })?;
        let place = buffer.0.as_ptr();
        // SAFETY: the buffer was just made.
        unsafe { sys::ggml_backend_buffer_set_usage(place, usage) };
        arena.mark_stand_in();
        arena.own(buffer, None);
        for tensor in tensors {
            if tensor.is_allocated() {
                continue;
            }
            // SAFETY: the tensor's bytes fit the noted range, and it has no place yet.
            let status = unsafe { sys::ggml_backend_tensor_alloc(place, tensor.as_ptr(), nowhere) };
            if status != sys::GGML_STATUS_SUCCESS {
                return fault(
                    "stand_in",
                    format!("`{}`: ggml answered {status}", tensor.name()),
                );
            }
        }
        Ok(())
    }

    /// [`Self::stand_in`] on a device whose memory the host does not address: an empty buffer, which tells the
    /// scheduler the device of the tensors.
    fn stand_in_elsewhere(
        self,
        arena: &Arena,
        tensors: &[&Tensor],
        usage: sys::ggml_backend_buffer_usage,
    ) -> Result<(), Error> {
        // SAFETY: the buffer type lives as long as the program; a buffer of no bytes takes no memory.
        let ptr = unsafe { sys::ggml_backend_buft_alloc_buffer(self.buffer_type(), 0) };
        let buffer = NonNull::new(ptr).map(Buffer);
        self.check()?;
        let buffer = buffer
            .ok_or_else(|| Error::Device(format!("{} refused an empty buffer", self.name())))?;
        // SAFETY: the buffer was just made.
        unsafe { sys::ggml_backend_buffer_set_usage(buffer.0.as_ptr(), usage) };
        for tensor in tensors.iter().filter(|tensor| !tensor.is_allocated()) {
            // SAFETY: both are alive as long as the arena, which is marked below: no graph over the
            // tensor runs, and nothing reads or writes it.
            unsafe { sys::shim_tensor_set_buffer(tensor.as_ptr(), buffer.0.as_ptr()) };
        }
        arena.mark_stand_in();
        arena.own(buffer, None);
        Ok(())
    }

    pub fn write(tensor: &Tensor, bytes: &[u8]) -> Result<(), Error> {
        if !tensor.has_memory() || !tensor.is_contiguous() || tensor.bytes() != bytes.len() {
            return fault(
                "write",
                format!(
                    "`{}` takes {} contiguous bytes, found {}",
                    tensor.name(),
                    tensor.bytes(),
                    bytes.len()
                ),
            );
        }
        // SAFETY: the tensor has memory for exactly these bytes.
        unsafe {
            sys::ggml_backend_tensor_set(tensor.as_ptr(), bytes.as_ptr().cast(), 0, bytes.len())
        };
        of_tensor(tensor)?.map_or(Ok(()), Self::check)
    }

    /// Reads the bytes of `n` rows of a tensor, from row `from` on.
    pub fn read_rows(
        tensor: &Tensor,
        from: usize,
        n: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let n_bytes = n.saturating_mul(tensor.strides()[1]);
        let at = offset_of_rows("read_rows", tensor, from, n_bytes)?;
        bytes.resize(n_bytes, 0);
        // SAFETY: these bytes lie inside the tensor, which has memory (checked above).
        unsafe {
            sys::ggml_backend_tensor_get(tensor.as_ptr(), bytes.as_mut_ptr().cast(), at, n_bytes)
        };
        of_tensor(tensor)?.map_or(Ok(()), Self::check)
    }

    /// Writes the bytes of rows of a tensor, from row `from` on.
    pub fn write_rows(tensor: &Tensor, from: usize, bytes: &[u8]) -> Result<(), Error> {
        let at = offset_of_rows("write_rows", tensor, from, bytes.len())?;
        // SAFETY: these bytes lie inside the tensor, which has memory (checked above).
        unsafe {
            sys::ggml_backend_tensor_set(tensor.as_ptr(), bytes.as_ptr().cast(), at, bytes.len())
        };
        of_tensor(tensor)?.map_or(Ok(()), Self::check)
    }

    /// Copies `n` rows of a tensor, from row `from` on, to row `to`, on its device.
    pub fn copy_rows(tensor: &Tensor, from: usize, to: usize, n: usize) -> Result<(), Error> {
        let row = tensor.strides()[1];
        let n_rows = tensor.bytes().checked_div(row).unwrap_or(0);
        let fits = |at: usize| at.checked_add(n).is_some_and(|end| end <= n_rows);
        let is_sound = fits(from) && fits(to) && from.abs_diff(to) >= n;
        if !tensor.has_memory() || !tensor.is_contiguous() || n == 0 || !is_sound {
            return fault(
                "copy_rows",
                format!(
                    "`{}` has {n_rows} contiguous rows: {n} from {from} to {to}",
                    tensor.name()
                ),
            );
        }
        let views = Arena::new(2, 0)?;
        let rows_from = |at: usize| {
            let (ctx, width) = (views.reserve()?, tensor.shape()[0] as i64);
            // SAFETY: the rows lie inside the tensor (checked above), which has memory: so has the view.
            let view = unsafe {
                let view = sys::ggml_view_2d(ctx, tensor.as_ptr(), width, n as i64, row, at * row);
                sys::ggml_backend_view_init(view);
                view
            };
            views.wrap("copy_rows", view)
        };
        let (from, to) = (rows_from(from)?, rows_from(to)?);
        // SAFETY: both are views of the same shape of a tensor with memory, and do not overlap.
        unsafe { sys::ggml_backend_tensor_copy(from.as_ptr(), to.as_ptr()) };
        of_tensor(tensor)?.map_or(Ok(()), Self::check)
    }
}

fn offset_of_rows(
    op: &'static str,
    tensor: &Tensor,
    from: usize,
    n_bytes: usize,
) -> Result<usize, Error> {
    let at = from.checked_mul(tensor.strides()[1]);
    let end = at.and_then(|at| at.checked_add(n_bytes));
    let fits = end.is_some_and(|end| end <= tensor.bytes());
    match at.filter(|_| fits && tensor.has_memory() && tensor.is_contiguous()) {
        Some(at) => Ok(at),
        None => Err(Error::Arguments {
            op,
            message: format!(
                "`{}` has {} contiguous bytes: {n_bytes} from row {from} on",
                tensor.name(),
                tensor.bytes()
            ),
        }),
    }
}
impl Tensor {
    /// Whether the tensor is used in place in a file and products on the processor are faster with interleaved rows.
    pub fn interleaves(&self) -> bool {
        let is_in_file = self.arena.is_host_memory() && self.is_contiguous();
        is_in_file && RowsInFile::are_interleaved(self.ty(), self.shape())
    }

    /// Has products on the processor read interleaved rows in place of the tensor's own.
    ///
    /// # Errors
    /// The rows are not those of the tensor.
    pub fn use_interleaved(&self, rows: &InterleavedRows) -> Result<(), Error> {
        if !self.interleaves() || self.bytes() != rows.bytes() {
            return fault("use_interleaved", format!("{rows:?} for {self:?}"));
        }
        self.arena.keep_rows(rows.clone());
        // SAFETY: the rows are whole tiles of the tensor's type and shape, and live as long as its arena. No graph runs
        // meanwhile: handles stay on one thread.
        unsafe {
            sys::shim_tensor_set_interleaved(self.as_ptr(), rows.as_ptr().cast());
        }
        Ok(())
    }
}
