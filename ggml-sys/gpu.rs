//! Backends that become part of the program: `backend/CMakeLists.txt` builds each as a static library.

use std::env;
use std::path::Path;
use std::process::Command;

/// A backend that a feature asks for.
pub(crate) struct Backend {
    name: &'static str,
    /// Has ggml's registry know it.
    pub(crate) define: &'static str,
    /// What its build needs besides CMake and a C++ compiler.
    needs: &'static str,
    /// macOS frameworks it is linked with.
    frameworks: &'static [&'static str],
}

const BACKENDS: [Backend; 3] = [
    Backend {
        name: "cuda",
        define: "GGML_USE_CUDA",
        needs: "the CUDA toolkit with nvcc on the PATH",
        frameworks: &[],
    },
    Backend {
        name: "metal",
        define: "GGML_USE_METAL",
        needs: "Xcode's command line tools",
        frameworks: &["Foundation", "Metal", "MetalKit"],
    },
    Backend {
        name: "vulkan",
        define: "GGML_USE_VULKAN",
        needs: "Vulkan's C++ headers and loader (1.4), glslc and the SPIR-V headers (Debian 13: libvulkan-dev glslc \
                spirv-headers)",
        frameworks: &[],
    },
];

/// The backends whose features are on.
pub(crate) fn wanted() -> Vec<Backend> {
    let is_on =
        |b: &Backend| env::var_os(format!("CARGO_FEATURE_{}", b.name.to_uppercase())).is_some();
    BACKENDS.into_iter().filter(is_on).collect()
}

impl Backend {
    /// Builds it and has the program linked with it.
    ///
    /// # Panics
    /// Something is missing; the message names what to install.
    pub(crate) fn build(&self, ggml: &Path, out: &Path) {
        let folder = out.join(self.name);
        let mut configure = Command::new("cmake");
        configure
            .args(["-S", "backend", "-B"])
            .arg(&folder)
            .args(["-D", "CMAKE_BUILD_TYPE=Release", "-D", "LIBRARY=OFF", "-D"])
            .arg(format!("GGML_DIR={}", ggml.display()))
            .args(["-D", &format!("BACKEND={}", self.name)]);
        let has_ninja = Command::new("ninja").arg("--version").output().is_ok();
        if has_ninja && !folder.join("CMakeCache.txt").is_file() {
            configure.args(["-G", "Ninja"]);
        }
        self.run(&mut configure);
        let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "1".into());
        let mut build = Command::new("cmake");
        self.run(
            build
                .arg("--build")
                .arg(&folder)
                .args(["--parallel", &jobs]),
        );

        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static=ggml-{}", self.name);
        let links = std::fs::read_to_string(folder.join("link.txt")).unwrap_or_default();
        for path in links.lines().map(Path::new) {
            let name = path.file_stem().and_then(|name| name.to_str());
            let (Some(name), Some(parent)) = (name, path.parent()) else {
                continue;
            };
            println!("cargo::rustc-link-search=native={}", parent.display());
            let name = name.strip_prefix("lib").unwrap_or(name);
            println!("cargo::rustc-link-lib=dylib={name}");
        }
        for framework in self.frameworks {
            println!("cargo::rustc-link-lib=framework={framework}");
        }
    }

    fn run(&self, command: &mut Command) {
        let needs = format!(
            "the feature `{}` needs CMake (3.19), a C++ compiler and {}; docs/gpu.md has the packages",
            self.name, self.needs
        );
        match command.status() {
            Err(error) => panic!("cmake does not start ({error}): {needs}"),
            Ok(status) if !status.success() => {
                panic!("cmake failed, its messages are above: {needs}")
            }
            Ok(_) => {}
        }
    }
}
