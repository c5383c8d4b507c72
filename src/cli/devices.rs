//! `bench devices`: the devices that can compute; `bench rpc-worker`: lends this machine to others.

use std::net::{IpAddr, Ipv4Addr};

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use crate::common::wording::bytes;
use crate::ggml::{Device, DeviceKind, devices, rpc};

use super::options::{byte_count, cores};
use super::placement::Workers;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    workers: Workers,
}

fn kind(device: Device) -> &'static str {
    match device.kind() {
        DeviceKind::Cpu => "processor",
        DeviceKind::Gpu => "gpu",
        DeviceKind::IntegratedGpu => "integrated gpu",
        DeviceKind::Accelerator => "accelerator",
    }
}

/// Lists all devices.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.workers.connect()?;
    let all = devices();
    if args.json {
        let all = all.into_iter().map(|device| {
            let (free, total) = device.memory();
            json!({
                "name": device.name(), "kind": kind(device), "description": device.description(),
                "memory_free": free, "memory_total": total,
            })
        });
        return output::line(serde_json::to_string_pretty(&all.collect::<Value>())?);
    }
    for device in all {
        let (free, total) = device.memory();
        output::line(format!(
            "{}: {}, {}, {} of {} free",
            device.name(),
            kind(device),
            output::shown(&device.description()),
            bytes(free as u64),
            bytes(total as u64)
        ))?;
    }
    Ok(())
}

#[derive(Debug, ClapArgs)]
pub(super) struct WorkerArgs {
    /// Port to listen on
    #[arg(long, default_value_t = 50052, value_name = "PORT")]
    port: u16,
    /// Address to listen on. The protocol has neither encryption nor authentication, and a client can take this
    /// process over: use another address than 127.0.0.1 only in a network that you trust
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS")]
    host: IpAddr,
    /// Number of compute threads; default: the cores of the machine
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Memory to lend of each device, in bytes, such as 512M or 8G: no more is reported, and what would need
    /// more is refused; default: what is free
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    mem: Option<u64>,
    /// Devices to lend, by the names that `bench devices` prints; default: the GPUs, or else the processor
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    device: Vec<String>,
}

/// Lends devices until the process ends.
pub(super) fn lend(args: &WorkerArgs) -> Result<(), Failure> {
    let mut lent: Vec<Device> = match args.device.as_slice() {
        [] => devices(),
        names => names
            .iter()
            .map(|name| Device::named(name))
            .collect::<Result<_, _>>()?,
    };
    if args.device.is_empty() {
        let is_gpu = |device: &Device| device.kind() == DeviceKind::Gpu;
        let has_gpu = lent.iter().any(is_gpu);
        lent.retain(|device| is_gpu(device) || !has_gpu);
    }
    if !args.host.is_loopback() {
        tracing::warn!(
            address = %args.host,
            "anyone who reaches this address can use this machine: the protocol has no authentication"
        );
    }
    let n_threads = args.threads.unwrap_or_else(cores).max(1);
    Ok(rpc::serve(
        &format!("{}:{}", args.host, args.port),
        &lent,
        n_threads,
        args.mem,
    )?)
}
