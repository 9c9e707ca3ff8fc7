//! Which of many things have been seen, a bit each.
//!
//! set: sets the bit whose number (text) is the parameter; replies what it was, 0 or 1. Writes a byte.
//! get: replies that bit.
//! count: replies how many bits are set, as text.
#![no_std]

mod headwater {
    #[link(wasm_import_module = "headwater")]
    unsafe extern "C" {
        pub fn value_read(offset: u32, to: *mut u8, len: u32) -> u32;
        pub fn value_write(offset: u32, from: *const u8, len: u32);
        pub fn param_read(offset: u32, to: *mut u8, len: u32) -> u32;
        pub fn reply(from: *const u8, len: u32);
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

const BAD_NUMBER: i32 = 1;
/// Bits of 4 MiB, as much as a call may write.
const BITS_MAX: u32 = 32 << 20;

/// Copies bytes of the value from `offset` on; gives those that there are.
fn read(offset: u32, room: &mut [u8]) -> &[u8] {
    // SAFETY: the host writes no more than so many bytes there.
    let len = unsafe { headwater::value_read(offset, room.as_mut_ptr(), room.len() as u32) };
    &room[..len as usize]
}

fn reply(bytes: &[u8]) {
    // SAFETY: the host reads these bytes.
    unsafe { headwater::reply(bytes.as_ptr(), bytes.len() as u32) }
}

/// The byte and the bit in it that the parameter names.
fn place() -> Option<(u32, u8)> {
    let mut room = [0; 10];
    // SAFETY: the host writes no more than so many bytes there.
    let len = unsafe { headwater::param_read(0, room.as_mut_ptr(), room.len() as u32) };
    let text = core::str::from_utf8(&room[..len as usize]).ok()?;
    let number: u32 = text.parse().ok()?;
    (number < BITS_MAX).then_some((number / 8, 1 << (number % 8)))
}

/// The byte at `offset`; 0 behind the end.
fn byte(offset: u32) -> u8 {
    read(offset, &mut [0]).first().copied().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn set() -> i32 {
    let Some((offset, bit)) = place() else { return BAD_NUMBER };
    let was = byte(offset);
    if was & bit == 0 {
        // SAFETY: the host reads this byte.
        unsafe { headwater::value_write(offset, &(was | bit), 1) };
    }
    reply(if was & bit == 0 { b"0" } else { b"1" });
    0
}

#[unsafe(no_mangle)]
extern "C" fn get() -> i32 {
    let Some((offset, bit)) = place() else { return BAD_NUMBER };
    reply(if byte(offset) & bit == 0 { b"0" } else { b"1" });
    0
}

#[unsafe(no_mangle)]
extern "C" fn count() -> i32 {
    let (mut room, mut offset, mut set) = ([0; 1024], 0, 0);
    loop {
        let part = read(offset, &mut room);
        if part.is_empty() {
            break;
        }
        offset += part.len() as u32;
        set += part.iter().map(|byte| byte.count_ones()).sum::<u32>();
    }
    let mut text = [0; 10];
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (set % 10) as u8;
        set /= 10;
        if set == 0 {
            break;
        }
    }
    reply(&text[at..]);
    0
}
