//! The options that place layers on devices, and what they resolve to.

use clap::Args;

use crate::ggml::{Device, DeviceKind, devices, rpc};
use crate::plan::{Plan, Share};

use super::Failure;

/// Number of layers that are not on the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuLayers {
    All,
    Count(usize),
}

impl std::str::FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            n => match n.parse() {
                Ok(n) => Ok(Self::Count(n)),
                Err(_) => Err("expected a number of layers or `all`".to_owned()),
            },
        }
    }
}

/// Which layers run on which devices.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct PlacementOptions {
    /// Number of layers on GPUs and other machines, counted from the last one; the head counts as a layer. A
    /// number or all; default: all if there is such a device
    #[arg(long, value_name = "N|all")]
    gpu_layers: Option<GpuLayers>,
    /// GPUs and other machines to use, by the names that `bench devices` prints, in the order of the layers;
    /// none = only the processor; default: all of them
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    device: Vec<String>,
    /// Shares of the layers of each device, such as 3,1; default: by free memory
    #[arg(long, value_name = "SHARE,...", value_delimiter = ',')]
    tensor_split: Vec<f64>,
    #[command(flatten)]
    workers: Workers,
}

/// Devices of other machines.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Workers {
    /// RPC workers (`bench rpc-worker`) whose devices are used. The protocol has neither encryption nor
    /// authentication: use it only in networks that you trust
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    rpc: Vec<String>,
}

impl Workers {
    /// Connects to the workers, if any are named.
    ///
    /// # Errors
    /// A worker that is not there.
    pub(super) fn connect(&self) -> Result<(), Failure> {
        for endpoint in &self.rpc {
            rpc::connect(endpoint)?;
        }
        Ok(())
    }
}

impl PlacementOptions {
    /// Places the layers of a plan.
    ///
    /// # Errors
    /// A worker or a device that is not there, shares that do not fit the devices.
    pub(super) fn place(&self, plan: &mut Plan) -> Result<(), Failure> {
        self.workers.connect()?;
        let devices = self.devices()?;
        let weights = self.weights(&devices)?;
        let n = match self.gpu_layers {
            None | Some(GpuLayers::All) => plan.n_placeable(),
            Some(GpuLayers::Count(n)) => n.min(plan.n_placeable()),
        };
        let shares = devices.iter().zip(split(n, &weights));
        let shares = shares.map(|(device, n_layers)| Share {
            device: device.name(),
            n_layers,
        });
        plan.place(&shares.collect::<Vec<_>>());
        Ok(())
    }

    /// The devices to use besides the processor.
    fn devices(&self) -> Result<Vec<Device>, Failure> {
        if self.device.is_empty() {
            let is_gpu = |device: &Device| {
                matches!(device.kind(), DeviceKind::Gpu | DeviceKind::IntegratedGpu)
            };
            return Ok(devices().into_iter().filter(is_gpu).collect());
        }
        let named = self.device.iter().filter(|name| *name != "none");
        Ok(named
            .map(|name| Device::named(name))
            .collect::<Result<_, _>>()?)
    }

    /// How the layers are shared out among the devices.
    fn weights(&self, devices: &[Device]) -> Result<Vec<f64>, Failure> {
        if self.tensor_split.is_empty() {
            let free = |device: &Device| device.memory().0.max(1) as f64;
            return Ok(devices.iter().map(free).collect());
        }
        let is_share = |share: &f64| share.is_finite() && *share >= 0.0;
        let total: f64 = self.tensor_split.iter().sum();
        if self.tensor_split.len() != devices.len()
            || !self.tensor_split.iter().all(is_share)
            || total <= 0.0
        {
            anyhow::bail!(
                "--tensor-split: expected a share, 0 or more, for each of {} devices, found {:?}",
                devices.len(),
                self.tensor_split
            );
        }
        Ok(self.tensor_split.clone())
    }
}

/// Splits `n` in proportion to weights: the sums of the parts up to each are rounded, so that the parts
/// add up to `n`.
fn split(n: usize, weights: &[f64]) -> Vec<usize> {
    let total: f64 = weights.iter().sum();
    let (mut sum, mut before) = (0.0, 0);
    let part = |weight: &f64| {
        sum += weight;
        let end = (n as f64 * sum / total).round() as usize;
        let part = end - before;
        before = end;
        part
    };
    weights.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_the_weights_and_add_up() {
        assert_eq!(split(10, &[1.0, 1.0]), [5, 5]);
        assert_eq!(split(10, &[3.0, 1.0]), [8, 2]);
        assert_eq!(split(3, &[1.0, 1.0]), [2, 1]);
        assert_eq!(split(1, &[0.0, 1.0]), [0, 1]);
        assert_eq!(split(0, &[2.0]), [0]);
        assert_eq!(split(7, &[]), [0usize; 0]);
    }
}
