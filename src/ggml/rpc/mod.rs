//! Devices of other machines, by ggml's protocol over TCP, which knows neither encryption nor
//! authentication.
//!
//! What a worker answers is checked by a relay between it and ggml (`relay`). The first fault of a connection makes
//! everything that is computed over it an error, until ggml connects anew: when nothing there is in use any more.

mod relay;

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ggml_sys as sys;

use super::device::Device;
use super::error::Error;

pub use relay::Worker;

/// The workers that lend devices to this process.
static WORKERS: Mutex<Vec<Arc<Worker>>> = Mutex::new(Vec::new());

fn fault(name: &str, message: &str) -> Error {
    Error::Worker(format!("RPC worker {name}: {message}"))
}

fn workers() -> Vec<Arc<Worker>> {
    WORKERS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// The workers whose devices these are.
pub fn workers_of(devices: &[Device]) -> Vec<Arc<Worker>> {
    let mut found = workers();
    found.retain(|worker| devices.iter().any(|device| worker.has(*device)));
    found
}

impl Device {
    /// The device's description of itself; of a device of a worker, the worker.
    pub fn description(self) -> String {
        let workers = workers_of(&[self]);
        workers
            .first()
            .map_or_else(|| self.endpoint(), |worker| worker.name().to_owned())
    }

    /// # Errors
    /// It is of a worker whose answers are not to be believed.
    pub(in crate::ggml) fn check(self) -> Result<(), Error> {
        workers_of(&[self])
            .iter()
            .try_for_each(|worker| worker.check())
    }
}

/// Adds the devices of a worker, `HOST:PORT`, to the registry. A worker that was added before gives the
/// same devices. `limit` is how long it may take for an answer, or for a piece of what it is sent; none: any time.
///
/// # Errors
/// No worker accepts a connection there, it lends no device, or its answers are late or wrong.
pub fn connect(endpoint: &str, limit: Option<Duration>) -> Result<Vec<Device>, Error> {
    drop(relay::connected(endpoint).map_err(|refusal| fault(endpoint, &refusal))?);
    let known = workers()
        .into_iter()
        .find(|worker| worker.name() == endpoint);
    let is_new = known.is_none();
    let worker = match known {
        Some(worker) => worker,
        None => {
            Worker::new(endpoint, limit).map_err(|error| fault(endpoint, &error.to_string()))?
        }
    };
    let fault = |message: &str| fault(endpoint, message);
    let name = CString::new(worker.relay()).map_err(|_| fault("the name has a zero byte"))?;
    // SAFETY: the name is NUL-terminated; what is returned lives as long as the program.
    let reg = unsafe { sys::ggml_backend_rpc_add_server(name.as_ptr()) };
    if is_new {
        worker.check()?;
    }
    if reg.is_null() {
        return Err(fault("it lends no device"));
    }
    // SAFETY: the registry entry was just checked, and indices are below its count.
    let found: Vec<Device> = unsafe {
        (0..sys::ggml_backend_reg_dev_count(reg))
            .filter_map(|i| NonNull::new(sys::ggml_backend_reg_dev_get(reg, i)).map(Device))
            .collect()
    };
    for device in &found {
        // What ggml asks once and keeps.
        device.buffer_type();
        if is_new {
            worker.check()?;
        }
        // SAFETY: the device is one of another machine; no graph of this program has been scheduled on it.
        unsafe { sys::shim_device_refuse_own_ops(device.as_ptr()) };
    }
    if !found.iter().all(|device| super::devices().contains(device)) {
        // SAFETY: as above; the registry has none of these devices yet.
        unsafe { sys::ggml_backend_register(reg) };
    }
    if is_new {
        let mut all = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(worker);
    }
    Ok(found)
}

/// Lends devices to other machines on `HOST:PORT`: one client at a time, until the process ends. Of each
/// device at most `most` bytes are lent, if that is given.
///
/// # Errors
/// The address cannot be listened on, or a device does not start or cannot be limited.
pub fn serve(
    endpoint: &str,
    devices: &[Device],
    n_threads: usize,
    most: Option<u64>,
) -> Result<(), Error> {
    let fault = |message: &str| fault(endpoint, message);
    for device in devices {
        let Some(most) = most else { break };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        // SAFETY: the device lives as long as the program, which has made no buffer of it yet and from here
        // on uses it on this thread alone.
        if !unsafe { sys::shim_device_limit_memory(device.as_ptr(), most) } {
            return Err(fault(&format!("{} cannot be limited", device.name())));
        }
    }
    let name = CString::new(endpoint).map_err(|_| fault("the name has a zero byte"))?;
    let mut raw: Vec<_> = devices.iter().map(|device| device.as_ptr()).collect();
    // SAFETY: the name is NUL-terminated, the devices live as long as the program, and the call does
    // not keep the list.
    unsafe {
        sys::ggml_backend_rpc_start_server(
            name.as_ptr(),
            std::ptr::null(),
            n_threads,
            raw.len(),
            raw.as_mut_ptr(),
        );
    }
    Err(fault("it does not listen there"))
}
