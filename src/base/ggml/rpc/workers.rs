//! The workers that lend devices to this process.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ggml_sys as sys;

use super::super::device::Device;
use super::super::error::Error;
use super::{Worker, relay};
use crate::util::lock::lock;

static WORKERS: Mutex<Vec<Arc<Worker>>> = Mutex::new(Vec::new());

pub(super) fn fault(name: &str, message: &str) -> Error {
    Error::Worker(format!("RPC worker {name}: {message}"))
}

fn workers() -> Vec<Arc<Worker>> {
    lock(&WORKERS).clone()
}

/// The workers to which these devices belong.
pub fn workers_of(devices: &[Device]) -> Vec<Arc<Worker>> {
    let mut found = workers();
    found.retain(|worker| devices.iter().any(|device| worker.has(*device)));
    found
}

impl Device {
    /// The device's description of itself, or for a device of a worker, the worker.
    pub fn description(self) -> String {
        let workers = workers_of(&[self]);
        workers
            .first()
            .map_or_else(|| self.endpoint(), |worker| worker.name().to_owned())
    }

    pub(in crate::ggml) fn check(self) -> Result<(), Error> {
        workers_of(&[self])
            .iter()
            .try_for_each(|worker| worker.check())
    }
}

/// Adds the devices of a worker, `HOST:PORT`, to the registry. A worker that was added before gives the same devices.
/// `limit` is the maximum time for an answer, or for taking a piece of a request; none: no limit.
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
    let found = registered(&worker, is_new);
    if is_new {
        match &found {
            Ok(_) => {
                let mut all = lock(&WORKERS);
                all.push(worker);
            }
            Err(_) => worker.end(),
        }
    }
    found
}

/// Adds the devices of a worker to ggml's registry. The answers of a new worker are checked.
fn registered(worker: &Worker, is_new: bool) -> Result<Vec<Device>, Error> {
    let fault = |message: &str| fault(worker.name(), message);
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
        // ggml asks for this once and keeps the answer.
        device.buffer_type();
        if is_new {
            worker.check()?;
        }
        // SAFETY: the device is one of another machine; no graph of this program has been scheduled on it.
        unsafe { sys::shim_device_refuse_own_ops(device.as_ptr()) };
    }
    if !found
        .iter()
        .all(|device| super::super::devices().contains(device))
    {
        // SAFETY: as above; the registry has none of these devices yet.
        unsafe { super::super::device::register(reg) };
    }
    Ok(found)
}
