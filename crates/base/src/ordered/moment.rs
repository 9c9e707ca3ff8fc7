//! Moments, as texts and as seconds since 1970, in the Gregorian calendar at all times.

use crate::Decimal;
use alloc::format;
use alloc::vec::Vec;

const DAY: i64 = 86_400;

/// The seconds since 1970 that a text says, exactly.
pub(super) fn seconds(text: &[u8]) -> Option<Decimal> {
    if let Some(number) = Decimal::parse(text) {
        return Some(number);
    }
    let mut rest = Rest(text);
    let (year, month, day) = (rest.digits(4)?, rest.after(b'-', 2)?, rest.after(b'-', 2)?);
    if !(1..=12).contains(&month) || !(1..=days_in(year, month)).contains(&day) {
        return None;
    }
    let mut seconds = days_before(year, month, day) * DAY;
    let mut fraction: &[u8] = &[];
    if let Some((b'T' | b't' | b' ', _)) = rest.0.split_first() {
        rest.0 = &rest.0[1..];
        let (hour, minute) = (rest.digits(2)?, rest.after(b':', 2)?);
        let second = if rest.0.first() == Some(&b':') { rest.after(b':', 2)? } else { 0 };
        // A second is added now and then; it is the first one of the next minute here.
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        seconds += hour * 3600 + minute * 60 + second;
        if let Some((b'.', more)) = rest.0.split_first() {
            let len = more.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if len == 0 {
                return None;
            }
            (fraction, rest.0) = more.split_at(len);
        }
        seconds -= rest.offset()?;
    }
    if !rest.0.is_empty() {
        return None;
    }
    let mut total = Decimal::parse(format!("{seconds}").as_bytes())?;
    if !fraction.is_empty() {
        total.add(&Decimal::parse(&[b"0.", fraction].concat())?);
    }
    Some(total)
}

/// What has not been read of a text.
struct Rest<'t>(&'t [u8]);

impl Rest<'_> {
    /// The number that exactly so many digits say.
    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        let number = digits.iter().fold(0, |number, &digit| number * 10 + i64::from(digit & 15));
        digits.iter().all(u8::is_ascii_digit).then_some(number)
    }

    fn after(&mut self, mark: u8, count: usize) -> Option<i64> {
        self.0 = self.0.strip_prefix(&[mark])?;
        self.digits(count)
    }

    /// Seconds that the text is ahead of UTC: `Z`, or hours and perhaps minutes, or nothing.
    fn offset(&mut self) -> Option<i64> {
        let sign = match self.0.split_first() {
            None => return Some(0),
            Some((b'Z' | b'z', rest)) => {
                self.0 = rest;
                return Some(0);
            }
            Some((b'+', rest)) => {
                self.0 = rest;
                1
            }
            Some((b'-', rest)) => {
                self.0 = rest;
                -1
            }
            Some(_) => return None,
        };
        let hours = self.digits(2)?;
        self.0 = self.0.strip_prefix(b":").unwrap_or(self.0);
        let minutes = if self.0.is_empty() { 0 } else { self.digits(2)? };
        (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970 to a date.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the day of leap years is their last.
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leaps + (153 * month + 2) / 5 + day - 719_469
}

/// The date so many days after 1970.
fn date_of(days: i64) -> (i64, i64, i64) {
    // The year is guessed from its mean length, and is one off at most.
    let mut year = (days * 400).div_euclid(146_097) + 1970;
    while days_before(year, 1, 1) > days {
        year -= 1;
    }
    while days_before(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut day = days - days_before(year, 1, 1);
    let mut month = 1;
    while day >= days_in(year, month) {
        day -= days_in(year, month);
        month += 1;
    }
    (year, month, day + 1)
}

/// The text of a number of seconds since 1970, which is in its plainest form; as it is outside of the years 0 to 9999.
pub(super) fn written(number: &[u8]) -> Option<Vec<u8>> {
    let text = core::str::from_utf8(number).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let Ok(mut seconds) = whole.parse::<i64>() else { return Some(number.to_vec()) };
    let mut fraction = fraction.as_bytes().to_vec();
    if whole.starts_with('-') && !fraction.is_empty() {
        // A second earlier, and what is missing to the next one.
        seconds = seconds.checked_sub(1)?;
        for digit in &mut fraction {
            *digit = b'0' + b'9' - *digit;
        }
        // The last digit is not 0, so nothing is carried.
        *fraction.last_mut()? += 1;
    }
    let (year, month, day) = date_of(seconds.div_euclid(DAY).clamp(-800_000, 3_000_000));
    if !(0..=9999).contains(&year) {
        return Some(number.to_vec());
    }
    let rest = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let mut text =
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}").into_bytes();
    if !fraction.is_empty() {
        text.push(b'.');
        text.extend_from_slice(&fraction);
    }
    text.push(b'Z');
    Some(text)
}
