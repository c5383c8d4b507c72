//! Backends, and the schedulers that divide graphs among them. Not here: the memory of graphs and their runs
//! (`executor.rs`).
//!
//! A scheduler and what uses a backend keep it alive.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use ggml_sys as sys;

use super::device::Device;
use super::error::Error;

pub(in crate::ggml) struct Backend(pub(in crate::ggml) NonNull<sys::ggml_backend>);

impl Backend {
    pub(in crate::ggml) fn new(device: Device) -> Result<Self, Error> {
        // SAFETY: the device is registered; null parameters mean the defaults.
        let ptr = unsafe { sys::ggml_backend_dev_init(device.as_ptr(), std::ptr::null()) };
        let backend = NonNull::new(ptr).map(Self);
        backend.ok_or_else(|| Error::Device(format!("the device {} does not start", device.name())))
    }

    /// The backend of a device other than the processor, which executors of a thread share: a worker on another machine keeps one
    /// graph for a backend, and two backends would take each other's for their own.
    pub(in crate::ggml) fn shared(device: Device) -> Result<Rc<Self>, Error> {
        thread_local! {
            static IN_USE: RefCell<Vec<(Device, Weak<Backend>)>> = const { RefCell::new(Vec::new()) };
        }
        IN_USE.with_borrow_mut(|all| {
            all.retain(|(_, backend)| backend.strong_count() > 0);
            let known = all.iter().find(|(of, _)| *of == device);
            if let Some(backend) = known.and_then(|(_, backend)| backend.upgrade()) {
                return Ok(backend);
            }
            let backend = Rc::new(Self::new(device)?);
            all.push((device, Rc::downgrade(&backend)));
            Ok(backend)
        })
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: what uses the backend, a scheduler or events, is dropped first (field order).
        unsafe { sys::ggml_backend_free(self.0.as_ptr()) };
    }
}

/// A place in the order of what a backend computes and copies.
pub(in crate::ggml) struct Event(NonNull<sys::ggml_backend_event>);

impl Event {
    /// None if the device has no events.
    pub(in crate::ggml) fn new(device: Device) -> Option<Self> {
        // SAFETY: the device lives as long as the program.
        NonNull::new(unsafe { sys::ggml_backend_event_new(device.as_ptr()) }).map(Self)
    }

    /// Puts the event after all that the backend was given so far.
    pub(in crate::ggml) fn record(&self, backend: &Backend) {
        // SAFETY: both are alive and of the same device.
        unsafe { sys::ggml_backend_event_record(self.0.as_ptr(), backend.0.as_ptr()) };
    }

    /// Waits until the backend has reached it; at once if it was never recorded.
    pub(in crate::ggml) fn wait(&self) {
        // SAFETY: the event is alive.
        unsafe { sys::ggml_backend_event_synchronize(self.0.as_ptr()) };
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new` and freed once. Who recorded it has waited.
        unsafe { sys::ggml_backend_event_free(self.0.as_ptr()) };
    }
}

/// A scheduler of graphs on some backends.
pub(in crate::ggml) struct Scheduler {
    ptr: NonNull<sys::ggml_backend_sched>,
    /// The backends that it uses, the processor's last.
    _backends: Vec<Rc<Backend>>,
}

impl Scheduler {
    /// A scheduler for graphs of up to `capacity` nodes and leaves together. The last backend is the processor's.
    pub(in crate::ggml) fn new(backends: &[Rc<Backend>], capacity: usize) -> Result<Self, Error> {
        let mut raw: Vec<sys::ggml_backend_t> = backends.iter().map(|b| b.0.as_ptr()).collect();
        // SAFETY: `raw` holds live backends, the processor's last; null buffer types mean the
        // defaults; the scheduler copies the list.
        let scheduler = unsafe {
            sys::ggml_backend_sched_new(
                raw.as_mut_ptr(),
                std::ptr::null_mut(),
                raw.len() as i32,
                capacity,
                false,
                true,
            )
        };
        let ptr = NonNull::new(scheduler);
        let ptr = ptr.ok_or_else(|| Error::Device("ggml made no scheduler".into()))?;
        let _backends = backends.to_vec();
        Ok(Self { ptr, _backends })
    }

    pub(in crate::ggml) fn as_ptr(&self) -> sys::ggml_backend_sched_t {
        self.ptr.as_ptr()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: made by `new` and freed once.
        unsafe { sys::ggml_backend_sched_free(self.as_ptr()) };
    }
}
