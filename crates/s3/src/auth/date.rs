//! Dates of signatures.

/// Parses a date in the format of signatures, `YYYYMMDDTHHMMSSZ`, into seconds since the Unix epoch.
pub(crate) fn parse_amz_date(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if bytes.len() != 16 || bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let number = |range: std::ops::Range<usize>| {
        let digits = &bytes[range];
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0')))
    };
    let (year, month, day) = (number(0..4)?, number(4..6)?, number(6..8)?);
    let (hour, minute, second) = (number(9..11)?, number(11..13)?, number(13..15)?);
    let valid =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    if !valid || year < 1970 {
        return None;
    }
    Some(days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// The inverse of [`parse_amz_date`].
pub(crate) fn format_amz_date(unix_seconds: u64) -> String {
    let (year, month, day) = civil(unix_seconds / 86_400);
    let second = unix_seconds % 86_400;
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3_600, second / 60 % 60, second % 60)
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar (years begin in March, eras have 400 years).
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn dates_survive_their_text(seconds in 0u64..253_402_300_799) {
            prop_assert_eq!(parse_amz_date(&format_amz_date(seconds)), Some(seconds));
        }

        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = parse_amz_date(&text);
        }
    }

    #[test]
    fn known_dates() {
        assert_eq!(parse_amz_date("20130524T000000Z"), Some(1_369_353_600));
        assert_eq!(parse_amz_date("20000229T235959Z"), Some(951_868_799));
        for wrong in ["20130524T000000", "20131324T000000Z", "2013-524T000000Z", "20130524T250000Z", ""] {
            assert_eq!(parse_amz_date(wrong), None, "{wrong}");
        }
    }
}
