#!/bin/sh
# Makes the passwords of docker-compose.yml, once: what is there stays as it is.
#
#   sh deploy/docker/secrets.sh [FOLDER]        by default secrets/, which git and Docker ignore
#
# The folder is yours alone; the files in it can be read by all, since a container gets each
# as it is, and its user is another one.
set -eu
folder=${1:-secrets}
mkdir -p "$folder"
chmod 700 "$folder"
cd "$folder"

random() { head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

make() { # NAME TEXT: without a newline at its end
    [ -e "$1" ] || printf %s "$2" > "$1"
    chmod 444 "$1"
}

make redis_password "$(random)"
make redis_url "redis://:$(cat redis_password)@redis:6379/0"
make rabbitmq_password "$(random)"
make rabbitmq_conf "default_user = celery
default_pass = $(cat rabbitmq_password)
"
make rabbitmq_url "amqp://celery:$(cat rabbitmq_password)@rabbitmq:5672//"
make webapp_secret "$(random)"
make flower_auth "admin:$(random)"
make grafana_password "$(random)"
echo "Flower: user admin, password in $PWD/flower_auth behind the colon"
echo "Grafana: user admin, password in $PWD/grafana_password"
