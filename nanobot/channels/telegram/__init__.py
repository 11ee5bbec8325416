"""The Telegram channel, on python-telegram-bot."""
