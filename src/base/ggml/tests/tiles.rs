//! Products by tile registers (AMX) have the bits of those by vectors. Where the processor has no tiles, their
//! instructions are emulated: each raises a signal, whose handler does what Intel's manual says.

use std::cell::RefCell;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use ggml_sys as sys;

use super::super::*;
use super::interleave::{TYPES, matrix};
use super::matmul::values;
use super::result;
use crate::weights::TensorType::{self, *};

/// The tile registers of a thread: bytes of a row and rows of each, and the data.
struct Tiles {
    shapes: [(usize, usize); 8],
    data: [[[u8; 64]; 16]; 8],
}

thread_local! {
    static TILES: RefCell<Tiles> = const {
        RefCell::new(Tiles { shapes: [(0, 0); 8], data: [[[0; 64]; 16]; 8] })
    };
}

/// Number of products of tiles that were emulated.
static EMULATED: AtomicUsize = AtomicUsize::new(0);

/// An operand in memory, `[base + index * scale + distance]`.
struct Operand {
    address: usize,
    /// The index times its scale.
    stride: usize,
    /// Bytes of the instruction from its ModRM byte on.
    length: usize,
}

/// Reads the ModRM byte of an instruction and what follows. `extends`: the bits of the prefix for the index and the base.
fn operand(code: &[u8], extends: [usize; 2], registers: impl Fn(usize) -> usize) -> Operand {
    let (mode, low) = (code[0] >> 6, usize::from(code[0] & 7));
    let (mut base, mut stride, mut length) = (low | extends[1] << 3, 0, 1);
    if low == 4 {
        let index = usize::from(code[1] >> 3 & 7) | extends[0] << 3;
        base = usize::from(code[1] & 7) | extends[1] << 3;
        if index != 4 {
            stride = registers(index) << (code[1] >> 6);
        }
        length = 2;
    }
    assert!(mode > 0 || base & 7 != 5, "an address without a base");
    let distance = match mode {
        0 => 0,
        1 => isize::from(code[length] as i8),
        _ => i32::from_le_bytes(code[length..length + 4].try_into().expect("four")) as isize,
    };
    length += [0, 1, 4][usize::from(mode)];
    Operand {
        address: registers(base).wrapping_add_signed(distance),
        stride,
        length,
    }
}

/// The places of registers in the context of a signal, by their numbers in instructions.
const PLACES: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Computes the instruction at which a thread stands, and sets it behind it.
///
/// # Safety
/// `context` is that of a signal, and the instruction's memory is the thread's.
unsafe fn emulate(context: *mut libc::ucontext_t) {
    // SAFETY: the caller's.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as *const u8;
    // SAFETY: an instruction has at most 15 bytes, and code follows.
    let code = unsafe { std::slice::from_raw_parts(at, 15) };
    // A prefix of three bytes for the second map of opcodes, with vectors of 128 bits.
    assert!(
        code[0] == 0xc4 && code[1] & 31 == 2 && code[2] & 0x84 == 0,
        "{code:x?}"
    );
    let extends = [code[1] >> 6 & 1, code[1] >> 5 & 1].map(|bit| usize::from(bit ^ 1));
    let (kind, third) = (code[2] & 3, usize::from(!code[2] >> 3 & 7));
    let (mode, reg, low) = (
        code[4] >> 6,
        usize::from(code[4] >> 3 & 7),
        usize::from(code[4] & 7),
    );
    let in_memory = || {
        operand(&code[4..], extends, |n| {
            registers[PLACES[n] as usize] as usize
        })
    };
    let length = TILES.with_borrow_mut(|tiles| match (code[3], kind, mode) {
        // LDTILECFG
        (0x49, 0, 0..3) => {
            let of = in_memory();
            // SAFETY: the operand has 64 bytes.
            let config = unsafe { std::slice::from_raw_parts(of.address as *const u8, 64) };
            assert_eq!(config[..2], [1, 0], "the palette and the first row");
            for (i, shape) in tiles.shapes.iter_mut().enumerate() {
                let bytes = u16::from_le_bytes([config[16 + 2 * i], config[17 + 2 * i]]);
                *shape = (bytes.into(), config[48 + i].into());
                assert!(shape.0 <= 64 && shape.1 <= 16, "{shape:?}");
            }
            tiles.data = [[[0; 64]; 16]; 8];
            of.length
        }
        // TILERELEASE
        (0x49, 0, 3) => {
            tiles.shapes = [(0, 0); 8];
            1
        }
        // TILEZERO
        (0x49, 3, 3) => {
            tiles.data[reg] = [[0; 64]; 16];
            1
        }
        // TILELOADD, TILESTORED
        (0x4b, 3 | 2, 0..3) => {
            let of = in_memory();
            let (bytes, rows) = tiles.shapes[reg];
            assert!(bytes > 0 && rows > 0, "tile {reg} has no shape");
            if kind == 3 {
                tiles.data[reg] = [[0; 64]; 16];
            }
            for row in 0..rows {
                let address = of.address.wrapping_add(row.wrapping_mul(of.stride));
                let ours = tiles.data[reg][row].as_mut_ptr();
                // SAFETY: the rows of the operand are the thread's.
                unsafe {
                    match kind {
                        3 => std::ptr::copy(address as *const u8, ours, bytes),
                        _ => std::ptr::copy(ours, address as *mut u8, bytes),
                    }
                }
            }
            of.length
        }
        // TDPBSUD: signed bytes of the second operand, unsigned ones of the third.
        (0x5e, 2, 3) => {
            let (bytes, rows) = tiles.shapes[reg];
            let (depth, a_rows) = tiles.shapes[low];
            let (b_bytes, b_rows) = tiles.shapes[third];
            assert!(rows == a_rows && b_bytes == bytes && b_rows * 4 == depth);
            for m in 0..rows {
                for n in 0..bytes / 4 {
                    let place = 4 * n..4 * n + 4;
                    let sum = &tiles.data[reg][m][place.clone()];
                    let mut sum = i32::from_le_bytes(sum.try_into().expect("four"));
                    for k in 0..depth {
                        let a = i32::from(tiles.data[low][m][k] as i8);
                        let b = i32::from(tiles.data[third][k / 4][4 * n + k % 4]);
                        sum = sum.wrapping_add(a * b);
                    }
                    tiles.data[reg][m][place].copy_from_slice(&sum.to_le_bytes());
                }
            }
            EMULATED.fetch_add(1, Ordering::Relaxed);
            1
        }
        _ => panic!("{code:x?}"),
    });
    registers[libc::REG_RIP as usize] += 4 + length as i64;
}

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system gives the context; products have instructions of tiles alone that it lacks.
    unsafe { emulate(context.cast()) }
}

fn install() {
    // SAFETY: all of the action that is not set is zero, which is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        assert_eq!(
            libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()),
            0
        );
    }
}

fn use_tiles(how: i32) -> bool {
    // SAFETY: the function sets a flag, before other threads multiply.
    unsafe { sys::shim_use_tiles(how) != 0 }
}

/// The products of experts, of which one has 40 columns.
fn experts(arena: &Arena, ty: TensorType) -> Vec<f32> {
    let matrix = matrix(arena, ty, [256, 32, 2, 1], 3);
    let n = 40;
    let mut g = Graph::new(16, 8).expect("a small graph");
    let b = g.input("b", F32, &[256, 1, n]);
    let b = b.expect("columns");
    let ids = g.index_input("ids", I32, &[1, n], 2);
    let ids = ids.expect("ids");
    let z = g.mul_mat_id(&matrix.tensor, &b, &ids).expect("shapes fit");
    g.output(&z).expect("of this graph");
    let mut executor = Executor::new(&[], 2, 64).expect("the processor");
    executor.load(g).expect("it fits");
    let columns = values(256 * n as usize, 5);
    executor.write(&b, &columns).expect("columns");
    let of: Vec<i32> = (0..n as i32).map(|i| i32::from(i == 7)).collect();
    executor.write_indices(&ids, &of).expect("ids");
    executor.run().expect("it runs");
    result(&executor, &z)
}

/// Further types that tiles multiply.
const NEVER_INTERLEAVED: &[TensorType] = &[Q2_K, Q3_K, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S];

const CHILD: &str = "BENCH_TEST_TILES";

/// A process of its own: what is emulated is slow, and other tests would use it.
#[test]
fn products_by_tiles_have_the_bits_of_those_by_vectors() {
    if std::env::var_os(CHILD).is_none() {
        let name = "ggml::tests::tiles::products_by_tiles_have_the_bits_of_those_by_vectors";
        let mut child = Command::new(std::env::current_exe().expect("its path"));
        let child = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let child = child.output().expect("it starts");
        let out = String::from_utf8_lossy(&child.stdout);
        let error = String::from_utf8_lossy(&child.stderr);
        let has_run = out.contains("1 passed");
        assert!(child.status.success() && has_run, "{out}{error}");
        return;
    }
    if !use_tiles(2) {
        // The processor has no vectors that belong to tiles.
        return;
    }
    let has_tiles = use_tiles(1);
    if !has_tiles {
        install();
    }
    for &ty in TYPES.iter().chain(NEVER_INTERLEAVED) {
        // Whole tiles of rows, which are interleaved if those of the type are, and a part of one.
        for (k, m) in [(256, 48), (1280, 40)] {
            let arena = Arena::new(1, 0).expect("small");
            let matrix = matrix(&arena, ty, [k, m, 1, 1], k as u32);
            let is_interleaved = m == 48 && matrix.tensor.interleaves();
            let _rows = is_interleaved.then(|| matrix.interleave());
            let products = || {
                // Columns that fill tiles, and such that do not.
                let cases = [(0, 16, 1), (16, 15, 1), (0, 33, 2), (0, 130, 2)];
                let of = |(first, n, threads)| matrix.product(first, n, threads);
                (
                    cases.map(of),
                    experts(&Arena::new(1, 0).expect("small"), ty),
                )
            };
            use_tiles(0);
            let expected = products();
            use_tiles(if has_tiles { 1 } else { 2 });
            let before = EMULATED.load(Ordering::Relaxed);
            assert!(products() == expected, "{ty}, rows of {k}");
            let emulated = EMULATED.load(Ordering::Relaxed) - before;
            assert_eq!(emulated == 0, has_tiles, "{ty}, rows of {k}");
        }
    }
}
