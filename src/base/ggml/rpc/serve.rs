//! Lends this machine's devices to other machines.

use std::ffi::CString;

use ggml_sys as sys;

use super::super::device::Device;
use super::super::error::Error;
use super::workers::fault;

/// Lends devices to other machines on `HOST:PORT`: to one client at a time, until the process ends. With `most`, at
/// most that many bytes of each device are lent.
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
