//! What a service manager is told of the server's state (systemd: `Type=notify` and `notify-reload`, `WatchdogSec=`).
//!
//! Without the variable `NOTIFY_SOCKET` nothing is told. What cannot be told is logged: the server goes on.

/// Tells a line of state, such as `READY=1`.
pub(super) fn tell(state: &str) {
    #[cfg(unix)]
    if let Err(error) = unix::tell(state) {
        tracing::warn!(%error, "the service manager was not told `{state}`");
    }
    #[cfg(not(unix))]
    let _ = state;
}

/// Tells that what may change is read again.
#[cfg(unix)]
pub(super) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Tells at every half of the watchdog's time that the runtime of the connections goes on, if there is a watchdog.
pub(super) fn watch() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_own = number("WATCHDOG_PID").is_none_or(|id| id == u64::from(std::process::id()));
    let Some(micros) = number("WATCHDOG_USEC").filter(|micros| is_own && *micros > 1) else {
        return;
    };
    let half = std::time::Duration::from_micros(micros / 2);
    tokio::spawn(async move {
        loop {
            tell("WATCHDOG=1");
            tokio::time::sleep(half).await;
        }
    });
}

#[cfg(unix)]
mod unix {
    use std::io;
    use std::os::unix::net::UnixDatagram;

    pub(super) fn tell(state: &str) -> io::Result<()> {
        let Some(address) = std::env::var_os("NOTIFY_SOCKET") else {
            return Ok(());
        };
        let socket = UnixDatagram::unbound()?;
        #[cfg(target_os = "linux")]
        if let Some(name) = address.as_encoded_bytes().strip_prefix(b"@") {
            use std::os::linux::net::SocketAddrExt as _;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            return socket.send_to_addr(state.as_bytes(), &address).map(drop);
        }
        socket.send_to(state.as_bytes(), address).map(drop)
    }
}
