//! Devices of other machines, by ggml's protocol over TCP, which knows neither encryption nor
//! authentication.
//!
//! ggml ends the process when a connection is lost: a model with layers on another machine belongs
//! in a process of its own (`api::process`).

use std::ffi::CString;
use std::net::{TcpStream, ToSocketAddrs};
use std::ptr::NonNull;
use std::time::Duration;

use ggml_sys as sys;

use super::device::Device;
use super::error::Error;

/// How long a machine may take to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Adds the devices of a worker, `HOST:PORT`, to the registry. A worker that was added before gives the
/// same devices.
///
/// # Errors
/// No worker accepts a connection there, or it lends no device.
pub fn connect(endpoint: &str) -> Result<Vec<Device>, Error> {
    let fault = |message: &str| Error::Device(format!("RPC worker {endpoint}: {message}"));
    // ggml ends the process if it cannot connect.
    let addresses = endpoint
        .to_socket_addrs()
        .map_err(|error| fault(&format!("{error}; expected HOST:PORT")))?;
    let mut refusal = "the name has no address".to_owned();
    let is_there = addresses.into_iter().any(|address| {
        let found = TcpStream::connect_timeout(&address, CONNECT_TIME);
        found.map_err(|error| refusal = error.to_string()).is_ok()
    });
    if !is_there {
        return Err(fault(&refusal));
    }
    let name = CString::new(endpoint).map_err(|_| fault("the name has a zero byte"))?;
    // SAFETY: the name is NUL-terminated; what is returned lives as long as the program.
    let reg = unsafe { sys::ggml_backend_rpc_add_server(name.as_ptr()) };
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
        // SAFETY: the device is one of another machine; no graph of this program has been scheduled on it.
        unsafe { sys::shim_device_refuse_own_ops(device.as_ptr()) };
    }
    if !found.iter().all(|device| super::devices().contains(device)) {
        // SAFETY: as above; the registry has none of these devices yet.
        unsafe { sys::ggml_backend_register(reg) };
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
    let fault = |message: &str| Error::Device(format!("RPC worker {endpoint}: {message}"));
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
